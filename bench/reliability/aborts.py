"""`penstock bench aborts`: time from a client's leaving until its backend is free.

In each phase of a request (queued while a tokenizer counts, connecting, prefill, decode, and a
plain answer) clients leave in batches, by FIN, RST and half-close in turn; a plain answer's are
counted as prefill. Measured from before the first of a batch leaves until each backend's connection
is closed, on the backend's side; all of a batch leave at once, which is the hard case. Who leaves
while queued has no backend: there the proxy's own end of the connection is timed. Exit 0 when every
phase's p99 is at most the limit, every leaving was counted, and nothing is left.
"""

import asyncio
import base64
import socket
import statistics
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter
from typing import Any, Final, NamedTuple

import orjson
import uvloop

from penstock.bench.arguments import count, names, option, positive
from penstock.bench.client import HOST, ClientConnection, Way, get, post
from penstock.bench.meter import descriptors
from penstock.bench.peers.peer import MODEL
from penstock.bench.reliability.proxy_process import QUIET, Held, ProxyProcess
from penstock.bench.report import BenchError, head, row, verdict
from penstock.bench.sim.connection import Connection
from penstock.bench.sim.server import SimServer

BATCH: Final = 50
STEP_S: Final = 10.0
# The admin port's own requests.
TASKS_SLACK: Final = 2
# A rendered /metrics is kept so long.
SCRAPE_S: Final = 1.1
# The proxy counts its tasks every 5 s, so a figure may be of a time when clients still left.
TASKS_COUNTED_S: Final = 5.5 + SCRAPE_S
# Longer than the simulated servers keep the connections of the first probes.
PROBES_GONE_S: Final = 0.5
# What keeps a tokenizer busy for a quarter of a second: three prompts near the limit, each one
# word, which is the slowest there is to cut. Those who leave wait behind them.
STOPPERS: Final = 3
STOPPER_PROMPT: Final = "ab" * 120_000
REST_LOOKS: Final = 20
HEALTH: Final = get("/health")
_WAYS: Final = tuple(Way)
# The speed of the server by the phase.
_PROFILES: Final = {
    **dict.fromkeys(("queued", "connect", "prefill"), "instant"),
    **dict.fromkeys(("decode", "plain"), "steady-50"),
}

Times = list[float]
Clients = Sequence[ClientConnection]


class TimedServer(SimServer):
    """A simulated server that notes when its connections end."""

    def __init__(self, profile: str) -> None:
        super().__init__("sim", profile, keep_alive_s=0.3)
        self.ended_s: Times = []

    def disconnected(self, connection: Connection) -> None:
        self.ended_s.append(perf_counter())
        super().disconnected(connection)


class Phase(NamedTuple):
    """One row: how long each leaving took, and how many the proxy counted in this phase."""

    name: str
    counted: int
    times_s: Times
    faults: list[str]

    @property
    def p99_s(self) -> float:
        return statistics.quantiles(self.times_s, n=100)[98]


async def measure(name: str, count: int) -> Phase:
    """One phase before a fresh proxy, and whether anything is left of it."""
    faults: list[str] = []
    times: Times = []
    async with AsyncExitStack() as stack:
        started = _fleet(_PROFILES[name], **_config(stack, name))
        server, proxy = await stack.enter_async_context(started)
        before = await proxy.held()
        batch = await _batch(stack, name, server, proxy)
        while len(times) < count:
            times += await batch(min(BATCH, count - len(times)))
        left = await proxy.until_at_rest(2.0)
        faults += [f"{field} is {value} at the end" for field, value in left.items()]
        await asyncio.sleep(SCRAPE_S)
        counted = await leavings(proxy)
        if sum(counted.values()) != count:
            faults.append(f"{count} left and {counted} were counted")
        after = await proxy.held()
        until_s = monotonic() + TASKS_COUNTED_S
        while _more(after, before) and monotonic() < until_s:
            await asyncio.sleep(0.1)
            after = await proxy.held()
        if _more(after, before):
            faults.append(f"held before {before}, after {after}")
        return Phase(name, counted.get("prefill" if name == "plain" else name, 0), times, faults)


def _more(after: Held, before: Held) -> bool:
    return after.descriptors > before.descriptors or after.tasks > before.tasks + TASKS_SLACK


@asynccontextmanager
async def _fleet(profile: str, **config: Any) -> AsyncIterator[tuple[TimedServer, ProxyProcess]]:
    server = TimedServer(profile)
    await server.start()
    try:
        async with ProxyProcess([server.url], health=QUIET, **config) as proxy:
            await asyncio.sleep(PROBES_GONE_S)
            yield server, proxy
    finally:
        await server.stop()


def _config(stack: AsyncExitStack, name: str) -> dict[str, Any]:
    """What a phase needs: a tokenizer that takes its time, or patience with a dial."""
    if name == "connect":
        return {"timeouts": {"connect_s": 60}}
    if name != "queued":
        return {}
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="penstock-bench-")))
    ranks = [b"%b %d" % (base64.b64encode(bytes([byte])), byte) for byte in range(256)]
    (folder / "ranks").write_bytes(b"\n".join(ranks))
    return {"tokens": {"estimator": "tiktoken", "file": str(folder / "ranks")}}


async def _batch(
    stack: AsyncExitStack, name: str, server: TimedServer, proxy: ProxyProcess
) -> Callable[[int], Awaitable[Times]]:
    """What makes a number of clients leave in this phase."""
    if name == "queued":
        return partial(_while_counted, proxy)
    if name == "connect":
        port = server.port
        await server.stop()
        _occupy(stack, port)
        return partial(_while_dialled, proxy)
    if name == "prefill":
        server.faults.set("hang_after_headers")
    return partial(_at_a_server, proxy, server, stream=name != "plain", tokens=name == "decode")


def _occupy(stack: AsyncExitStack, port: int) -> None:
    """Listen on a port, and answer no more connections."""
    stack.enter_context(socket.create_server((HOST, port), backlog=0))
    for _ in range(4):
        sock = stack.enter_context(socket.socket())
        sock.setblocking(False)
        sock.connect_ex((HOST, port))


async def leavings(proxy: ProxyProcess) -> dict[str, int]:
    """Clients that left, by phase, as the proxy counts them."""
    counter = "penstock_client_aborts_total{"
    samples = (await proxy.metrics()).items()
    return {name.split('"')[1]: int(n) for name, n in samples if name.startswith(counter)}


def _request(prompt: str = "Once upon a time", tokens: int = 5_000, *, stream: bool) -> bytes:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "stream": stream}
    return post("/v1/completions", orjson.dumps(body))


async def _ask(proxy: ProxyProcess, count: int, raw: bytes) -> list[ClientConnection]:
    clients = [await ClientConnection.dial(proxy.port) for _ in range(count)]
    for client in clients:
        client.send(raw)
    return clients


def _leave(clients: Clients) -> float:
    """All leave now, in every way; when that began."""
    began_s = perf_counter()
    for number, client in enumerate(clients):
        client.leave(_WAYS[number % len(_WAYS)])
    return began_s


async def _gone(clients: Clients) -> None:
    async with asyncio.timeout(STEP_S):
        await asyncio.gather(*(client.gone() for client in clients))


async def _until(holds: Callable[[], bool], what: str) -> None:
    """Wait for a condition. Raises BenchError with `what` when it does not come."""
    try:
        async with asyncio.timeout(STEP_S):
            while not holds():
                await asyncio.sleep(0.001)
    except TimeoutError:
        raise BenchError(f"not within {STEP_S:g} s: {what}") from None


async def _at_a_server(
    proxy: ProxyProcess, server: TimedServer, count: int, *, stream: bool, tokens: bool
) -> Times:
    """They leave while a server works for them; `tokens`: after their first one."""
    clients = await _ask(proxy, count, _request(stream=stream))
    await _until(lambda: _running(server, clients) == count, "requests run")
    if tokens:
        await _until(lambda: all(each.answer.body for each in clients), "tokens come")
    server.ended_s.clear()
    began_s = _leave(clients)
    await _until(lambda: len(server.ended_s) == count, "backends are let go")
    assert server.engine.idle
    await _gone(clients)
    return [ended_s - began_s for ended_s in server.ended_s]


def _running(server: TimedServer, clients: Clients) -> int:
    """Requests that a server works for. Raises BenchError when one was refused instead."""
    for client in clients:
        if client.answer.status not in (0, 200):
            raise BenchError(f"refused: {bytes(client.answer.body)!r}")
    return server.engine.running


async def _while_dialled(proxy: ProxyProcess, count: int) -> Times:
    """They leave while their backend's port takes no more connections: dials hang."""
    looks = []
    for _ in range(REST_LOOKS):  # the least is without a probe or scrape that runs
        looks.append(descriptors(proxy.pid))
        await asyncio.sleep(0.01)
    idle = min(looks)
    clients = await _ask(proxy, count, _request(stream=True))
    await _until(lambda: descriptors(proxy.pid) >= idle + 2 * count, "backends are dialled")
    times: Times = []
    began_s = _leave(clients)
    while len(times) < count:
        left = (descriptors(proxy.pid) - idle + 1) // 2  # each had its own and its backend's
        times += [perf_counter() - began_s] * (count - left - len(times))
        if perf_counter() - began_s > STEP_S:
            raise BenchError(f"{left} dials go on")
        await asyncio.sleep(0.001)
    await _gone(clients)
    return times


async def _while_counted(proxy: ProxyProcess, count: int) -> Times:
    """They leave while a thread counts the prompts before theirs."""
    *clients, witness = [await ClientConnection.dial(proxy.port) for _ in range(count + 1)]
    stoppers = await _ask(proxy, STOPPERS, _request(STOPPER_PROMPT, 1, stream=False))
    for _ in range(10):  # the proxy answers after it has read what came before, a piece each turn
        await witness.ask(HEALTH)
    for client in clients:
        client.send(_request(stream=False))
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


def arguments(parser: ArgumentParser) -> None:
    option(parser, "--each N", count, 2_500, "clients a phase")
    option(parser, "--phases NAME,…", names("phase", _PROFILES), ",".join(_PROFILES), "which")
    option(parser, "--limit-ms MS", positive, 100.0, "of the p99")


def run(options: Namespace) -> int:
    print(head("phase", "clients left", "counted in it", "p50 ms", "p99 ms", "max ms"))
    failures: list[str] = []
    for name in options.phases:
        phase = uvloop.run(measure(name, options.each))
        figures = (statistics.median(phase.times_s), phase.p99_s, max(phase.times_s))
        cells = [f"{each * 1e3:.1f}" for each in figures]
        print(row(name, f"{len(phase.times_s):,}", f"{phase.counted:,}", *cells), flush=True)
        failures += [f"{name}: {fault}" for fault in phase.faults]
        if phase.p99_s * 1e3 > options.limit_ms:
            failures.append(f"{name}: p99 is over {options.limit_ms:g} ms")
    return verdict(failures)
