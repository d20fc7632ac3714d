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
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Final, NamedTuple

import orjson
import uvloop

from bench.reliability.client import ClientConnection, Way
from bench.reliability.proxy_process import ProxyProcess, descriptors
from bench.sim.connection import Connection
from bench.sim.server import SimServer

BATCH: Final = 50
# What keeps a tokenizer busy for a quarter of a second: three prompts near the limit, each one
# word, which is the slowest there is to cut. Those who leave wait behind them.
STOPPERS: Final = 3
STOPPER_PROMPT: Final = "ab" * 120_000
HEALTH: Final = b"GET /health HTTP/1.1\r\nhost: bench\r\n\r\n"
STEP_S: Final = 10.0
# No probe during a phase: connections and counters are those of the clients alone.
QUIET: Final = {"interval_s": 600, "timeout_s": 5, "deep": {"interval_s": 600}}
_WAYS: Final = tuple(Way)
# The admin port's own requests.
TASKS_SLACK: Final = 2
# A rendered /metrics is kept so long.
SCRAPE_S: Final = 1.1
# Longer than the simulated servers keep the connections of the first probes.
PROBES_GONE_S: Final = 0.5
_PROFILES: Final = {
    "queued": "instant",
    "connect": "instant",
    "prefill": "instant",
    "decode": "steady-50",
    "plain": "steady-50",
}

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
    """Wait for a condition; raises SystemExit with `what` when it does not come."""
    try:
        async with asyncio.timeout(STEP_S):
            while not holds():
                await asyncio.sleep(0.001)
    except TimeoutError:
        raise SystemExit(f"penstock bench aborts: not within {STEP_S:g} s: {what}") from None


def request(prompt: str = "Once upon a time", tokens: int = 5_000, *, stream: bool) -> bytes:
    body = {"model": "sim-model", "prompt": prompt, "max_tokens": tokens, "stream": stream}
    content = orjson.dumps(body)
    return (
        b"POST /v1/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(content), content)
    )


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


@asynccontextmanager
async def fleet(profile: str, **config: Any) -> AsyncIterator[tuple[TimedServer, ProxyProcess]]:
    server = TimedServer(profile)
    await server.start()
    try:
        async with ProxyProcess([server.url], health=QUIET, **config) as proxy:
            await asyncio.sleep(PROBES_GONE_S)
            yield server, proxy
    finally:
        await server.stop()


# A batch of each phase: how long each client's leaving took -----------------------------------


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
    """Requests that a server works for; raises SystemExit when one was refused instead."""
    for client in clients:
        if client.answer.status not in (0, 200):
            raise SystemExit(f"penstock bench aborts: refused: {bytes(client.answer.body)!r}")
    return server.engine.running


async def while_dialled(proxy: ProxyProcess, count: int) -> Times:
    """They leave while their backend's port takes no more connections: dials hang."""
    idle = descriptors(proxy.pid)
    clients = await ask(proxy, count, request(stream=True))
    await until(lambda: descriptors(proxy.pid) == idle + 2 * count, "backends are dialled")
    times: Times = []
    began_s = leave(clients)
    while len(times) < count:
        left = (descriptors(proxy.pid) - idle + 1) // 2  # each had its own and its backend's
        times += [perf_counter() - began_s] * (count - left - len(times))
        if perf_counter() - began_s > STEP_S:
            raise SystemExit(f"penstock bench aborts: {left} dials go on")
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


async def batches(count: int, batch: Callable[[int], Awaitable[Times]]) -> Times:
    times: Times = []
    while len(times) < count:
        times += await batch(min(BATCH, count - len(times)))
    return times


# The run -----------------------------------------------------------------------------------------


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
    async with AsyncExitStack() as stack:
        server, proxy = await stack.enter_async_context(
            fleet(_PROFILES[name], **_config(stack, name))
        )
        before = await proxy.held()
        batch: Callable[[int], Awaitable[Times]]
        if name == "connect":
            port = server.port
            await server.stop()
            stack.enter_context(OccupiedPort(port))
            batch = partial(while_dialled, proxy)
        elif name == "queued":
            batch = partial(while_counted, proxy)
        else:
            if name != "decode" and name != "plain":
                server.faults.set("hang_after_headers")
            batch = partial(
                at_a_server, proxy, server, stream=name != "plain", tokens=name == "decode"
            )
        times = await batches(count, batch)
        phase = "prefill" if name == "plain" else name
        left = await proxy.until_at_rest(2.0)
        faults += [f"{field} is {value} at the end" for field, value in left.items()]
        await asyncio.sleep(SCRAPE_S)
        counted = await leavings(proxy)
        if sum(counted.values()) != count:
            faults.append(f"{count} left and {counted} were counted")
        after = await proxy.held()
        if after.descriptors > before.descriptors or after.tasks > before.tasks + TASKS_SLACK:
            faults.append(f"held before {before}, after {after}")
        return Phase(name, counted.get(phase, 0), times, faults)


async def leavings(proxy: ProxyProcess) -> dict[str, int]:
    """Clients that left, by phase, as the proxy counts them."""
    found: dict[str, int] = {}
    for sample, value in (await proxy.metrics()).items():
        name, _, labels = sample.partition("{")
        if name == "penstock_client_aborts_total":
            found[labels.split('"')[1]] = int(value)
    return found


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


def main(argv: Sequence[str]) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="penstock bench aborts", description="How soon a leaving client's backend is free."
    )
    parser.add_argument("--each", type=int, default=2_500, help="clients a phase (default 2,500)")
    parser.add_argument("--phases", default=",".join(_PROFILES), help="which (default all)")
    parser.add_argument("--limit-ms", type=float, default=100.0, help="of the p99 (default 100)")
    options = parser.parse_args(argv)
    print(f"$ {shlex.join(['penstock', 'bench', 'aborts', *argv])}\n")
    print("| phase | clients left | counted in it | p50 ms | p99 ms | max ms |")
    print("|---|---:|---:|---:|---:|---:|")
    failures: list[str] = []
    for name in options.phases.split(","):
        phase = uvloop.run(measure(name, options.each))
        middle_s = statistics.median(phase.times_s)
        figures = (middle_s, phase.p99_s, max(phase.times_s))
        cells = " | ".join(f"{each * 1e3:.1f}" for each in figures)
        print(f"| {name} | {len(phase.times_s):,} | {phase.counted:,} | {cells} |", flush=True)
        failures += [f"{name}: {fault}" for fault in phase.faults]
        if phase.p99_s * 1e3 > options.limit_ms:
            failures.append(f"{name}: p99 is over {options.limit_ms:g} ms")
    for failure in failures:
        print(f"\nFailed: {failure}")
    return 1 if failures else 0


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
