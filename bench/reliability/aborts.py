"""`penstock bench aborts`: time from a client's leaving until its backend is free.

In each phase of a request (queued while a tokenizer counts, connecting,
prefill, decode, and a plain answer) clients leave in batches, by FIN, RST and
half-close in turn; a plain answer's are counted as prefill. Exit 0 when every
phase's p99 is at most the limit, every leaving was counted, and nothing is left.
"""

import asyncio
import base64
import statistics
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, Final, NamedTuple

import uvloop

from penstock.bench.arguments import count, names, positive
from penstock.bench.reliability.leaving import (
    OccupiedPort,
    TimedServer,
    Times,
    at_a_server,
    while_counted,
    while_dialled,
)
from penstock.bench.reliability.proxy_process import Held, ProxyProcess
from penstock.bench.report import head, row, verdict

BATCH: Final = 50
# No probe during a phase: connections and counters are those of the clients alone.
QUIET: Final = {"interval_s": 600, "timeout_s": 5, "deep": {"interval_s": 600}}
# The admin port's own requests.
TASKS_SLACK: Final = 2
# A rendered /metrics is kept so long.
SCRAPE_S: Final = 1.1
# The proxy counts its tasks every 5 s, so a figure may be of a time when clients still left.
TASKS_COUNTED_S: Final = 5.5 + SCRAPE_S
# Longer than the simulated servers keep the connections of the first probes.
PROBES_GONE_S: Final = 0.5
_PROFILES: Final = {
    "queued": "instant",
    "connect": "instant",
    "prefill": "instant",
    "decode": "steady-50",
    "plain": "steady-50",
}


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


async def batches(count: int, batch: Callable[[int], Awaitable[Times]]) -> Times:
    times: Times = []
    while len(times) < count:
        times += await batch(min(BATCH, count - len(times)))
    return times


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
        times = await batches(count, await _batch(stack, name, server, proxy))
        phase = "prefill" if name == "plain" else name
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
        return Phase(name, counted.get(phase, 0), times, faults)


def _more(after: Held, before: Held) -> bool:
    return after.descriptors > before.descriptors or after.tasks > before.tasks + TASKS_SLACK


async def _batch(
    stack: AsyncExitStack, name: str, server: TimedServer, proxy: ProxyProcess
) -> Callable[[int], Awaitable[Times]]:
    """What makes a number of clients leave in this phase."""
    if name == "queued":
        return partial(while_counted, proxy)
    if name == "connect":
        port = server.port
        await server.stop()
        stack.enter_context(OccupiedPort(port))
        return partial(while_dialled, proxy)
    if name == "prefill":
        server.faults.set("hang_after_headers")
    return partial(at_a_server, proxy, server, stream=name != "plain", tokens=name == "decode")


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


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--each", type=count, default=2_500, help="clients a phase (default 2,500)")
    phases = names("phase", _PROFILES)
    parser.add_argument(
        "--phases", type=phases, default=",".join(_PROFILES), help="which (default all)"
    )
    parser.add_argument("--limit-ms", type=positive, default=100.0, help="of the p99 (default 100)")


def run(options: Namespace) -> int:
    """Print the table; returns the exit status."""
    print(head("phase", "clients left", "counted in it", "p50 ms", "p99 ms", "max ms"))
    failures: list[str] = []
    for name in options.phases:
        phase = uvloop.run(measure(name, options.each))
        middle_s = statistics.median(phase.times_s)
        figures = (middle_s, phase.p99_s, max(phase.times_s))
        cells = [f"{each * 1e3:.1f}" for each in figures]
        print(row(name, f"{len(phase.times_s):,}", f"{phase.counted:,}", *cells), flush=True)
        failures += [f"{name}: {fault}" for fault in phase.faults]
        if phase.p99_s * 1e3 > options.limit_ms:
            failures.append(f"{name}: p99 is over {options.limit_ms:g} ms")
    return verdict(failures)
