"""Ports toward a backend: who ends a connection first keeps its port for a minute.

So no client may make the proxy end many, and a port that is not there is no fault of a backend's.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from penstock.bench.sim.server import SimServer
from penstock.proxy.wire.host import has_way
from penstock.proxy.wire.pool import IDLE_S
from tests.e2e.answers import ask
from tests.e2e.process import COUNTS, Penstock, Serve, Simulate

QUIET = {"interval_s": 60, "timeout_s": 5}
CLIENTS = 40
TIME_WAIT = "06"
SOCKETS = Path("/proc/net/tcp")

pytestmark = pytest.mark.skipif(not SOCKETS.exists(), reason="tells no states of sockets")


def waiting(port: int) -> int:
    """How many ports of ours toward this one are in TIME_WAIT."""
    rows = [line.split() for line in SOCKETS.read_text().splitlines()[1:]]
    return sum(row[3] == TIME_WAIT and row[2].endswith(f":{port:04X}") for row in rows)


def pool_turns(penstock: Penstock) -> int:
    """How often a thread of uvloop's pool began to wait."""
    tasks = Path(f"/proc/{penstock.process.pid}/task").iterdir()
    pool = [task for task in tasks if (task / "comm").read_text() == "libuv-worker\n"]
    lines = [line for task in pool for line in (task / "status").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary"))


async def begin(penstock: Penstock, leave: Callable[[socket.socket], None], *, late: bool) -> None:
    """Ask for a long stream and leave, at once or after what came first."""
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setblocking(False)
    await loop.sock_connect(sock, ("127.0.0.1", penstock.port))
    body = orjson.dumps({"prompt": "Once", "max_tokens": 5_000, "stream": True})
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    sock.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    if late:
        assert await loop.sock_recv(sock, 65_536)
    leave(sock)


def with_reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


async def at_rest(penstock: Penstock, server: SimServer) -> None:
    await penstock.until(lambda listing: not any(listing[0][name] for name in COUNTS), 5.0)
    async with asyncio.timeout(5):
        while not server.engine.idle:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("late", [False, True])
async def test_clients_that_begin_and_leave_use_up_no_ports(
    simulate: Simulate, serve: Serve, late: bool
) -> None:
    (server,) = await simulate()
    penstock = await serve([server], health=QUIET)
    before = waiting(server.port)
    for _ in range(CLIENTS // 2):
        await begin(penstock, with_reset, late=late)
        await begin(penstock, socket.socket.close, late=late)
    await at_rest(penstock, server)
    assert waiting(server.port) - before <= 1  # a probe's


async def test_connections_that_nobody_uses_again_use_up_no_ports(
    simulate: Simulate, serve: Serve
) -> None:
    """Each key has connections of its own, which are idle until they are too old."""
    (server,) = await simulate()
    penstock = await serve([server], health=QUIET)
    before = waiting(server.port)
    for number in range(CLIENTS):
        key = b"authorization: Bearer key-%d\r\n" % number
        assert (await ask(penstock, headers=key, max_tokens=1)).status == 200
    await asyncio.sleep(IDLE_S + 0.5)
    assert server.connections_total >= CLIENTS
    assert waiting(server.port) - before <= 1


async def test_connecting_to_an_address_takes_no_thread(simulate: Simulate, serve: Serve) -> None:
    """uvloop would look the address up in one, which costs more than the connection itself."""
    (server,) = await simulate()
    penstock = await serve([server], health=QUIET)
    before = pool_turns(penstock)
    for number in range(CLIENTS):
        key = b"authorization: Bearer key-%d\r\n" % number
        assert (await ask(penstock, headers=key, max_tokens=1)).status == 200
    assert pool_turns(penstock) - before < CLIENTS / 2


def test_the_kernel_is_asked_for_a_way_to_an_address() -> None:
    assert has_way("127.0.0.1")
    assert not has_way("255.255.255.255")  # not without leave to broadcast
