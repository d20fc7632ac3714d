"""`penstock bench aborts`: how soon after a client leaves its backend is let go.

In each phase of a request (queued while a tokenizer counts, connecting,
prefill, decode, and a plain answer) clients leave in batches, by FIN, RST and
half-close in turn. Measured from before the first of a batch leaves until each
backend's connection is closed, on the backend's side; all of a batch leave at
once, which is the hard case. Who leaves while queued has no backend: there the
proxy's own end of the connection is timed. Exit 0 when every phase's p99 is at
most the limit, every leaving was counted in its phase, and nothing is left.
"""

import argparse
import asyncio
import base64
import shlex
import socket
import statistics
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Final

import orjson
import uvloop

from bench.reliability.client import ClientConnection, Way
from bench.reliability.proxy_process import ProxyProcess
from bench.sim.connection import Connection
from bench.sim.server import SimServer

BATCH: Final = 50
# As many as a tokenizer's queue holds; each waits for those before it.
QUEUED_BATCH: Final = 4
QUEUED_PROMPT: Final = "ab" * 120_000  # one word: the slowest there is to cut
LIMIT_S: Final = 0.1
STEP_S: Final = 10.0
# No probe during a phase: connections and counters are those of the clients alone.
QUIET: Final = {"interval_s": 600, "timeout_s": 5, "deep": {"interval_s": 600}}
_SYN_SENT: Final = "02"
_WAYS: Final = tuple(Way)

Times = list[float]
Phase = Callable[[int], Awaitable[tuple[Times, "ProxyProcess"]]]


class TimedServer(SimServer):
    """A simulated server that notes when its connections end."""

    def __init__(self, profile: str) -> None:
        super().__init__("sim", profile)
        self.ended_s: Times = []

    def disconnected(self, connection: Connection) -> None:
        self.ended_s.append(perf_counter())
        super().disconnected(connection)


async def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for a condition; raises SystemExit with `what` when it does not come."""
    try:
        async with asyncio.timeout(STEP_S):
            while not holds():
                await asyncio.sleep(0.001)
    except TimeoutError:
        raise SystemExit(f"penstock bench aborts: not within {STEP_S:g} s: {what}") from None


def request(prompt: str = "Once upon a time", *, stream: bool) -> bytes:
    body = {"model": "sim-model", "prompt": prompt, "max_tokens": 5_000, "stream": stream}
    content = orjson.dumps(body)
    return (
        b"POST /v1/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(content), content)
    )


async def ask(proxy: ProxyProcess, count: int, raw: bytes) -> list[ClientConnection]:
    clients = [await ClientConnection.dial(proxy.port) for _ in range(count)]
    for client in clients:
        client.send(raw)
    return clients


def leave(clients: Sequence[ClientConnection]) -> float:
    """All leave now, in every way; when that began."""
    began_s = perf_counter()
    for number, client in enumerate(clients):
        client.leave(_WAYS[number % len(_WAYS)])
    return began_s


@asynccontextmanager
async def fleet(profile: str, **config: Any) -> AsyncIterator[tuple[TimedServer, ProxyProcess]]:
    server = TimedServer(profile)
    await server.start()
    try:
        async with ProxyProcess([server.url], health=QUIET, **config) as proxy:
            yield server, proxy
    finally:
        await server.stop()


# The phases: each makes `count` clients leave and returns how long each took ----------------------


async def at_a_server(
    proxy: ProxyProcess, server: TimedServer, count: int, *, stream: bool, tokens: bool
) -> Times:
    """They leave while a server works for them; `tokens`: after their first one."""
    times: Times = []
    while len(times) < count:
        batch = min(BATCH, count - len(times))
        clients = await ask(proxy, batch, request(stream=stream))
        await until(lambda batch=batch: server.engine.running == batch, "requests run")  # type: ignore[misc]
        if tokens:
            await until(lambda c=clients: all(each.answer.body for each in c), "tokens come")  # type: ignore[misc]
        server.ended_s.clear()
        began_s = leave(clients)
        await until(lambda batch=batch: len(server.ended_s) == batch, "backends are let go")  # type: ignore[misc]
        assert server.engine.idle
        times += [ended_s - began_s for ended_s in server.ended_s]
        for client in clients:
            await client.gone()
    return times


async def while_dialled(proxy: ProxyProcess, server: TimedServer, count: int) -> Times:
    """They leave while their backend's port takes no more connections: dials hang."""
    port = server.port
    await server.stop()
    times: Times = []
    with Occupied(port):
        while len(times) < count:
            batch = min(BATCH, count - len(times))
            clients = await ask(proxy, batch, request(stream=True))
            await until(lambda batch=batch: dialling(port) == batch, "backends are dialled")  # type: ignore[misc]
            began_s = leave(clients)
            left = batch
            while left:
                now, left = left, dialling(port)
                times += [perf_counter() - began_s] * (now - left)
                await asyncio.sleep(0.001)
            for client in clients:
                await client.gone()
    return times


async def while_counted(proxy: ProxyProcess, count: int) -> Times:
    """They leave while a thread counts their prompt, or those before it."""
    times: Times = []
    raw = request(QUEUED_PROMPT, stream=False)
    while len(times) < count:
        clients = await ask(proxy, QUEUED_BATCH, raw)
        began_s = perf_counter()
        for client in clients:
            client.leave(Way.HALF)

        async def timed(client: ClientConnection, began_s: float = began_s) -> float:
            await client.gone()
            return perf_counter() - began_s

        async with asyncio.timeout(STEP_S):
            times += await asyncio.gather(*map(timed, clients))
    return times


class Occupied:
    """A port whose listener answers no more connections."""

    def __init__(self, port: int) -> None:
        self._sockets = [socket.create_server(("127.0.0.1", port), backlog=0)]
        for _ in range(4):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
            self._sockets.append(sock)
        self._own = dialling(port)
        self.port = port

    def __enter__(self) -> "Occupied":
        for sock in self._sockets[2:]:  # those that hang themselves: the queue is full without
            sock.close()
        return self

    def __exit__(self, *exc: object) -> None:
        for sock in self._sockets:
            sock.close()


def dialling(port: int) -> int:
    """Connections to a port that wait for its answer."""
    remote = f":{port:04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    fields = (line.split() for line in lines)
    return sum(each[2].endswith(remote) and each[3] == _SYN_SENT for each in fields)
