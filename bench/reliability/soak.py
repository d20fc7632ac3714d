"""`penstock bench soak`: load, leaving clients and failing servers, and then nothing is left.

Requests of all dialects, streamed and plain, through a real proxy before
simulated servers; some clients leave (FIN, RST, half-close) at any moment, some
requests meet a fault. At the end every answer was whole or told broken, none
held another's bytes, all counters are zero, and descriptors, tasks and memory
are where they were. Exit 0 when all of that holds.
"""

import asyncio
import contextlib
import statistics
import sys
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from random import Random
from time import monotonic
from typing import Any, Final, NamedTuple

import uvloop

from penstock.bench.arguments import option, positive, share
from penstock.bench.client import Clients, Way
from penstock.bench.reliability.proxy_process import Held, ProxyProcess
from penstock.bench.reliability.workload import FAULTS, Verdict, Wanted, judge, said, wanted
from penstock.bench.report import head, row, verdict
from penstock.bench.sim.server import SimServer

BACKENDS: Final = 4
# No answer takes longer: hung servers are given up after 3 s, thrice at most.
ANSWER_S: Final = 30.0
TIMEOUTS: Final = {"first_byte_s": 3, "idle_s": 3, "hold_s": 1}
# Arrivals that are later than this are left out; the load shares its cores with others.
ARREARS_S: Final = 0.5
# What a server takes for a token: a client that leaves does so before its last one.
TOKEN_S: Final = 0.01
REST_S: Final = 2.0
# Idle connections to backends are kept 3.5 s.
POOL_EMPTY_S: Final = 4.5
SAMPLE_S: Final = 1.0
# The first part of a run fills caches, pools and the allocator's free lists.
WARM_SHARE: Final = 0.3
SLACK: Final = {"descriptors": 3, "tasks": 2}
MIB: Final = 2**20
# Growth while measured: noise of the allocator, or a MiB in ten minutes; in a short run a process
# still warms up, and what it holds of all that is used for the first time is no leak.
RESIDENT_NOISE_BYTES: Final = 2 * MIB
RESIDENT_BYTES_PER_S: Final = MIB / 600
SHORT_S: Final = 300.0
WARMING_BYTES: Final = 16 * MIB

_MISBEHAVIOUR: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("cut_before_headers", {}),
    ("cut_before_headers", {"rst": True}),
    ("cut_after_headers", {}),
    ("cut_mid_stream", {"tokens": 3}),
    ("cut_mid_stream", {"tokens": 3, "rst": True}),
    ("error_event", {}),
    ("error_event", {"tokens": 2}),
    ("busy", {}),
    ("hang_after_headers", {}),
    ("hang_mid_stream", {"tokens": 2}),
    # Not `unsolicited`, an answer nobody asked for a moment after the real one: once the next
    # request is on its way, that is its answer to whoever speaks HTTP/1.1. Nor what a server does
    # that shuts down (`draining`, `done_only`, `abort_…`): one that goes on to say so is rightly
    # out for longer each time, until the load meets an empty fleet.
    ("second_answer", {}),
)


class Soak:
    """One run: its load, its samples, its answers."""

    def __init__(self, options: Namespace, proxy: ProxyProcess) -> None:
        self._options = options
        self._rng = Random(options.seed)
        self._proxy = proxy
        self._clients = Clients(proxy.port)
        self.servers: list[SimServer] = []
        self.verdicts: Counter[Verdict] = Counter()
        self.refusals: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.left = self.faults = 0
        self.skipped_s = 0.0
        self.latencies_s: list[float] = []
        self.samples: list[tuple[float, Held]] = []  # by the time of the run

    async def load(self) -> None:
        """Requests at the given rate, arriving at random, until the time is over."""
        options, rng = self._options, self._rng
        began_s = monotonic()
        next_s, number = began_s, 0
        async with asyncio.TaskGroup() as tasks:
            sampling = tasks.create_task(self._sample(began_s))
            while (next_s := next_s + rng.expovariate(options.rate)) < began_s + options.seconds:
                await asyncio.sleep(max(0.0, next_s - monotonic()))
                late_s = monotonic() - next_s
                if late_s > ARREARS_S:  # this process stood still: no burst to make up for it
                    self.skipped_s += late_s
                    next_s += late_s
                number += 1
                if rng.random() < options.faults:
                    kind, how = rng.choice(_MISBEHAVIOUR)
                    rng.choice(self.servers).faults.set(kind, times=1, **how)
                    self.faults += 1
                tasks.create_task(self._one(wanted(number, rng)))
            sampling.cancel()
        self._clients.close()

    async def _one(self, request: Wanted) -> None:
        rng = self._rng
        leaves = rng.random() < self._options.aborts
        leaves_s = rng.uniform(0, TOKEN_S * request.tokens) if leaves else None
        way = rng.choice(list(Way))
        began_s = monotonic()
        connection = await self._clients.take()
        left = False
        verdict = Verdict.HUNG
        connection.send(request.raw)
        try:
            async with asyncio.timeout(ANSWER_S if leaves_s is None else leaves_s):
                await connection.ended()
        except TimeoutError:
            if leaves_s is not None:
                left = True
                self.left += 1
                connection.leave(way)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(ANSWER_S):
                        await connection.gone()
        if connection.answer.ended or not connection.open:
            verdict = judge(request, connection.answer, left=left)
        if not left:
            self.verdicts[verdict] += 1
            if verdict is Verdict.TOLD:
                self.refusals[said(connection.answer)] += 1
            self.latencies_s.append(monotonic() - began_s)
        if verdict in FAULTS and len(self.wrong) < 10:
            answer = connection.answer
            tail = bytes(answer.body[-200:])
            how = f"left by {way.value}" if left else "stayed"
            self.wrong.append(
                f"{request.request_id} {request.path} {answer.status}, {how}: {verdict}"
            )
            print(self.wrong[-1], tail, file=sys.stderr)
        self._clients.give(connection)

    async def _sample(self, began_s: float) -> None:
        while True:
            await asyncio.sleep(SAMPLE_S)
            self.samples.append((monotonic() - began_s, await self._proxy.held()))


class Trend(NamedTuple):
    """A straight line through samples, by least squares."""

    first: float
    last: float
    per_s: float
    span_s: float

    @classmethod
    def of(cls, times: Sequence[float], values: Sequence[float]) -> "Trend":
        """The trend of values at these times, at least two of them different."""
        slope = statistics.linear_regression(times, values).slope
        return cls(values[0], values[-1], slope, times[-1] - times[0])

    @property
    def growth(self) -> float:
        """By how much the line rises over the samples."""
        return self.per_s * self.span_s


class Report:
    """The figures of a run, and what of them is not as it must be."""

    def __init__(self, soak: Soak, before: Held, after: Held, left: dict[str, int]) -> None:
        self._soak = soak
        warm = soak.samples[int(len(soak.samples) * WARM_SHARE) :]
        self._before, self._after = before, after
        self._left = left
        times = [at_s for at_s, _ in warm]
        values = zip(*[held for _, held in warm], strict=True)
        self.resident, self.descriptors, self.tasks = [Trend.of(times, each) for each in values]

    @property
    def failures(self) -> list[str]:
        soak, before, after = self._soak, self._before, self._after
        found = list(soak.wrong)
        found += [f"{name} is {count} at the end" for name, count in self._left.items()]
        for name, slack in SLACK.items():
            was, now = getattr(before, name), getattr(after, name)
            if now > was + slack:
                found.append(f"{name}: {was} before, {now} after")
        span_s = self.resident.span_s
        allowed_bytes = max(RESIDENT_NOISE_BYTES, RESIDENT_BYTES_PER_S * span_s)
        if self.resident.growth > (allowed_bytes if span_s > SHORT_S else WARMING_BYTES):
            found.append(f"memory grows: {self.resident.growth / MIB:.1f} MiB while measured")
        told = soak.verdicts[Verdict.TOLD]
        if told > soak.faults:
            found.append(f"{told} answers were broken by {soak.faults} faults")
        busy = [server.name for server in soak.servers if not server.engine.idle]
        return found + [f"{name} still works for nobody" for name in busy]

    def rows(self) -> list[tuple[str, str]]:
        soak, before, after = self._soak, self._before, self._after
        memory = self.resident
        cuts = statistics.quantiles(soak.latencies_s, n=100)
        counts = soak.verdicts
        return [
            ("requests answered", f"{sum(counts.values()):,}"),
            ("whole", f"{counts[Verdict.WHOLE]:,}"),
            ("told broken", f"{counts[Verdict.TOLD]:,}"),
            *((f"of these: {how}", f"{n:,}") for how, n in soak.refusals.most_common()),
            ("cut in silence, mixed, malformed or hung", f"{sum(counts[f] for f in FAULTS)}"),
            ("clients that left before their answer's end", f"{soak.left:,}"),
            ("seconds of arrivals left out, the load being late", f"{soak.skipped_s:.1f}"),
            ("faults set", f"{soak.faults:,}"),
            ("time to the last byte, p50 / p99 ms", f"{cuts[49] * 1e3:.0f} / {cuts[98] * 1e3:.0f}"),
            ("counters that are not zero at the end", str(len(self._left))),
            ("descriptors before / after", f"{before.descriptors} / {after.descriptors}"),
            ("tasks before / after", f"{before.tasks} / {after.tasks}"),
            ("descriptors, slope per minute", f"{self.descriptors.per_s * 60:+.2f}"),
            ("tasks, slope per minute", f"{self.tasks.per_s * 60:+.2f}"),
            (
                "memory, first / last measured MiB",
                f"{memory.first / MIB:.1f} / {memory.last / MIB:.1f}",
            ),
            ("memory, slope MiB per 10 minutes", f"{memory.per_s * 600 / MIB:+.2f}"),
        ]


async def soak(options: Namespace) -> Report:
    """Run the load and wait for the proxy to come to rest."""
    async with AsyncExitStack() as stack:
        servers = [SimServer(f"sim-{i}", "steady-50", speedup=2, seed=i) for i in range(BACKENDS)]
        for server in servers:
            await server.start()
            stack.push_async_callback(server.stop)
        urls = [server.url for server in servers]
        proxy = await stack.enter_async_context(ProxyProcess(urls, timeouts=TIMEOUTS))
        await asyncio.sleep(SAMPLE_S)
        before = await proxy.held()
        run = Soak(options, proxy)
        run.servers = servers
        await run.load()
        left = await proxy.until_at_rest(REST_S)
        await asyncio.sleep(POOL_EMPTY_S)
        return Report(run, before, await proxy.held(), left)


def run(options: Namespace) -> int:
    report = uvloop.run(soak(options))
    print(head(f"{options.seconds:g} s at {options.rate:g} requests/s", ""))
    for cells in report.rows():
        print(row(*cells))
    return verdict(report.failures)


def arguments(parser: ArgumentParser) -> None:
    for name, kind, default, text in (
        ("--seconds S", positive, 60.0, "of load"),
        ("--rate X", positive, 200.0, "requests/s"),
        ("--aborts X", share, 0.05, "share that leaves"),
        ("--faults X", share, 0.02, "share that meets one"),
        ("--seed N", int, 1, "of arrivals and choices"),
    ):
        option(parser, name, kind, default, text)
