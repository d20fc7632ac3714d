"""Clients that leave in one phase of a request, a batch at a time, and how long that took.

Measured from before the first of a batch leaves until each backend's connection
is closed, on the backend's side; all of a batch leave at once, which is the
hard case. Who leaves while queued has no backend: there the proxy's own end of
the connection is timed.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final

import orjson

from penstock.bench.client import ClientConnection, Way, get, post
from penstock.bench.meter import descriptors
from penstock.bench.reliability.proxy_process import ProxyProcess
from penstock.bench.report import BenchError
from penstock.bench.sim.connection import Connection
from penstock.bench.sim.server import SimServer

# What keeps a tokenizer busy for a quarter of a second: three prompts near the limit, each one
# word, which is the slowest there is to cut. Those who leave wait behind them.
STOPPERS: Final = 3
STOPPER_PROMPT: Final = "ab" * 120_000
STEP_S: Final = 10.0
REST_LOOKS: Final = 20
HEALTH: Final = get("/health")
_WAYS: Final = tuple(Way)

Times = list[float]


class TimedServer(SimServer):
    """A simulated server that notes when its connections end."""

    def __init__(self, profile: str) -> None:
        super().__init__("sim", profile, keep_alive_s=0.3)
        self.ended_s: Times = []

    def disconnected(self, connection: Connection) -> None:
        self.ended_s.append(perf_counter())
        super().disconnected(connection)


async def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for a condition. Raises BenchError with `what` when it does not come."""
    try:
        async with asyncio.timeout(STEP_S):
            while not holds():
                await asyncio.sleep(0.001)
    except TimeoutError:
        raise BenchError(f"not within {STEP_S:g} s: {what}") from None


def request(prompt: str = "Once upon a time", tokens: int = 5_000, *, stream: bool) -> bytes:
    body = {"model": "sim-model", "prompt": prompt, "max_tokens": tokens, "stream": stream}
    return post("/v1/completions", orjson.dumps(body))


async def dial(proxy: ProxyProcess, count: int) -> list[ClientConnection]:
    return [await ClientConnection.dial(proxy.port) for _ in range(count)]


async def ask(proxy: ProxyProcess, count: int, raw: bytes) -> list[ClientConnection]:
    clients = await dial(proxy, count)
    for client in clients:
        client.send(raw)
    return clients


def leave(clients: Sequence[ClientConnection]) -> float:
    """All leave now, in every way; when that began."""
    began_s = perf_counter()
    for number, client in enumerate(clients):
        client.leave(_WAYS[number % len(_WAYS)])
    return began_s


async def at_a_server(
    proxy: ProxyProcess, server: TimedServer, count: int, *, stream: bool, tokens: bool
) -> Times:
    """They leave while a server works for them; `tokens`: after their first one."""
    clients = await ask(proxy, count, request(stream=stream))
    await until(lambda: _running(server, clients) == count, "requests run")
    if tokens:
        await until(lambda: all(each.answer.body for each in clients), "tokens come")
    server.ended_s.clear()
    began_s = leave(clients)
    await until(lambda: len(server.ended_s) == count, "backends are let go")
    assert server.engine.idle
    await gone(clients)
    return [ended_s - began_s for ended_s in server.ended_s]


def _running(server: TimedServer, clients: Sequence[ClientConnection]) -> int:
    """Requests that a server works for. Raises BenchError when one was refused instead."""
    for client in clients:
        if client.answer.status not in (0, 200):
            raise BenchError(f"refused: {bytes(client.answer.body)!r}")
    return server.engine.running


async def descriptors_at_rest(proxy: ProxyProcess) -> int:
    """How many descriptors the proxy has open when no probe or scrape of it runs."""
    counts = []
    for _ in range(REST_LOOKS):
        counts.append(descriptors(proxy.pid))
        await asyncio.sleep(0.01)
    return min(counts)


async def while_dialled(proxy: ProxyProcess, count: int) -> Times:
    """They leave while their backend's port takes no more connections: dials hang."""
    idle = await descriptors_at_rest(proxy)
    clients = await ask(proxy, count, request(stream=True))
    await until(lambda: descriptors(proxy.pid) >= idle + 2 * count, "backends are dialled")
    times: Times = []
    began_s = leave(clients)
    while len(times) < count:
        left = (descriptors(proxy.pid) - idle + 1) // 2  # each had its own and its backend's
        times += [perf_counter() - began_s] * (count - left - len(times))
        if perf_counter() - began_s > STEP_S:
            raise BenchError(f"{left} dials go on")
        await asyncio.sleep(0.001)
    await gone(clients)
    return times


async def while_counted(proxy: ProxyProcess, count: int) -> Times:
    """They leave while a thread counts the prompts before theirs."""
    clients = await dial(proxy, count)
    witness = await ClientConnection.dial(proxy.port)
    stoppers = await ask(proxy, STOPPERS, request(STOPPER_PROMPT, 1, stream=False))
    for _ in range(10):  # the proxy answers after it has read what came before, a piece each turn
        await witness.ask(HEALTH)
    for client in clients:
        client.send(request(stream=False))
    await witness.ask(HEALTH)
    began_s = perf_counter()
    for client in clients:
        client.leave(Way.HALF)

    async def timed(client: ClientConnection) -> float:
        await client.gone()
        return perf_counter() - began_s

    async with asyncio.timeout(STEP_S):
        times = await asyncio.gather(*map(timed, clients))
        for client in (witness, *stoppers):
            await client.ended()
            client.leave(Way.CLOSE)
    return times


async def gone(clients: Sequence[ClientConnection]) -> None:
    async with asyncio.timeout(STEP_S):
        await asyncio.gather(*(client.gone() for client in clients))


class OccupiedPort:
    """A port whose listener answers no more connections."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> "OccupiedPort":
        self._sockets.append(socket.create_server(("127.0.0.1", self._port), backlog=0))
        for _ in range(4):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", self._port))
            self._sockets.append(sock)
        return self

    def __exit__(self, *exc: object) -> None:
        for sock in self._sockets:
            sock.close()
