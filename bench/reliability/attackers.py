"""Clients that send heads and bodies a byte at a time, in a process of their own.

`python -m penstock.bench.reliability.attackers '{"port": …}'` opens them, waits until the
proxy has closed all of them, and prints how long each was let to live.
"""

import asyncio
import sys
from time import monotonic
from typing import Final

import msgspec
import uvloop

from penstock.bench.client import ClientConnection

# Opened in groups, so that it is slowness that is measured and not a burst of connects.
GROUP: Final = 100
GROUP_S: Final = 0.05
# Any proxy that is to end them has done so this long after the time it gives them.
PATIENCE_S: Final = 30.0
_HEAD: Final = b"POST /v1/completions HTTP/1.1\r\nhost: bench\r\nx-slow: "
_WHOLE_HEAD: Final = (
    b"POST /v1/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
    b'content-length: 1000000\r\n\r\n{"prompt":"'
)


class Attack(msgspec.Struct):
    """How many of each kind, and when they must have been closed."""

    port: int
    heads: int
    bodies: int
    head_s: float
    body_s: float
    drip_s: float = 1.0


class Lives(msgspec.Struct):
    """Seconds from the first byte to the close, by kind; statuses that were answered."""

    heads_s: list[float]
    bodies_s: list[float]
    statuses: dict[str, int]
    never: int = 0


async def _one(plan: Attack, beginning: bytes, lives_s: list[float], told: Lives) -> None:
    """Send a beginning and then a byte now and then, until the proxy closes the connection."""
    connection = await ClientConnection.dial(plan.port)
    began_s = monotonic()
    connection.send(beginning)
    dripping = asyncio.create_task(_drip(connection, plan.drip_s))
    await connection.gone()
    lives_s.append(monotonic() - began_s)
    dripping.cancel()
    status = str(connection.answer.status or "none")
    told.statuses[status] = told.statuses.get(status, 0) + 1


async def _drip(connection: ClientConnection, drip_s: float) -> None:
    while True:
        connection.go_on(b"x")
        await asyncio.sleep(drip_s)


async def attack(plan: Attack) -> Lives:
    """Open all and wait for the proxy to close them."""
    told = Lives([], [], {})
    kinds = [(_HEAD, told.heads_s)] * plan.heads + [(_WHOLE_HEAD, told.bodies_s)] * plan.bodies
    attackers = []
    for start in range(0, len(kinds), GROUP):
        for beginning, lives_s in kinds[start : start + GROUP]:
            attackers.append(asyncio.create_task(_one(plan, beginning, lives_s, told)))
        await asyncio.sleep(GROUP_S)
    done, never = await asyncio.wait(attackers, timeout=max(plan.head_s, plan.body_s) + PATIENCE_S)
    for each in done:
        each.result()  # raises what went wrong here
    told.never = len(never)
    return told


if __name__ == "__main__":
    lives = uvloop.run(attack(msgspec.json.decode(sys.argv[1], type=Attack)))
    sys.stdout.buffer.write(msgspec.json.encode(lives))
