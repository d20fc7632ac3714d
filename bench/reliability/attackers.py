"""Clients that send heads and bodies a byte at a time, in a process of their own.

`python -m bench.reliability.attackers '{"port": …}'` opens them, waits until the
proxy has closed all of them, and prints how long each was let to live.
"""

import asyncio
import sys
from functools import partial
from time import monotonic
from typing import Final, cast

import msgspec
import uvloop

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


class Attacker(asyncio.Protocol):
    """One connection that sends a beginning, and then a byte now and then."""

    def __init__(self, beginning: bytes, drip_s: float, lives_s: list[float], told: Lives) -> None:
        self._beginning = beginning
        self._drip_s = drip_s
        self._lives_s = lives_s
        self._told = told
        self._began_s = 0.0
        self._got = b""
        self._timer: asyncio.TimerHandle | None = None
        self._transport = cast(asyncio.Transport, None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._beginning)
        self._began_s = monotonic()
        self._drip()

    def data_received(self, data: bytes) -> None:
        self._got += data

    def eof_received(self) -> None:
        self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def _drip(self) -> None:
        self._transport.write(b"x")
        self._timer = asyncio.get_running_loop().call_later(self._drip_s, self._drip)

    def _end(self) -> None:
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        self._lives_s.append(monotonic() - self._began_s)
        status = self._got[9:12].decode("latin-1") or "none"
        self._told.statuses[status] = self._told.statuses.get(status, 0) + 1


async def attack(plan: Attack) -> Lives:
    """Open all and wait for the proxy to close them."""
    loop = asyncio.get_running_loop()
    told = Lives([], [], {})
    kinds = [(_HEAD, told.heads_s)] * plan.heads + [(_WHOLE_HEAD, told.bodies_s)] * plan.bodies
    for start in range(0, len(kinds), GROUP):
        for beginning, lives_s in kinds[start : start + GROUP]:
            attacker = partial(Attacker, beginning, plan.drip_s, lives_s, told)
            await loop.create_connection(attacker, "127.0.0.1", plan.port)
        await asyncio.sleep(GROUP_S)
    until_s = monotonic() + max(plan.head_s, plan.body_s) + PATIENCE_S
    while len(told.heads_s) + len(told.bodies_s) < len(kinds) and monotonic() < until_s:
        await asyncio.sleep(0.05)
    told.never = len(kinds) - len(told.heads_s) - len(told.bodies_s)
    return told


if __name__ == "__main__":
    lives = uvloop.run(attack(msgspec.json.decode(sys.argv[1], type=Attack)))
    sys.stdout.buffer.write(msgspec.json.encode(lives))
