"""`penstock bench slow`: clients that send slowly, and clients that do not read.

First, slow heads and slow bodies, a byte a second each, beside ordinary
requests: windows without and with them alternate, and what the others wait for
is compared. Every slow client must be closed in the time it is given. Then
readers that ask for an endless stream and take nothing: what the proxy holds
for each, until it drops them. Exit 0 when all were closed in time, the others'
p99 stayed within the limit, and memory within the bound.
"""

import asyncio
import statistics
from argparse import ArgumentParser, Namespace
from random import Random
from time import monotonic
from typing import Final

import msgspec
import uvloop

from penstock.bench.arguments import count, positive
from penstock.bench.client import Clients
from penstock.bench.processes import report_of
from penstock.bench.reliability import stalled
from penstock.bench.reliability.attackers import Attack, Lives
from penstock.bench.reliability.proxy_process import ProxyProcess
from penstock.bench.reliability.workload import wanted
from penstock.bench.report import head, row, verdict
from penstock.bench.sim.server import SimServer

RATE_PER_S: Final = 50.0
# Time to be told and closed after the time that is given: the loop's lateness, and two
# thousand closes at once.
CLOSING_S: Final = 3.0
# The others' p99: at most so much longer, where that is more than noise.
P99_FACTOR: Final = 1.5
P99_NOISE_S: Final = 0.010
ATTACKERS: Final = "penstock.bench.reliability.attackers"
# Beside what slow clients are given: to start, to open all, and how long the last are waited for.
ATTACKERS_S: Final = 60.0


class Others:
    """Ordinary requests at a steady rate over kept-alive connections."""

    def __init__(self, proxy: ProxyProcess) -> None:
        self._clients = Clients(proxy.port)
        self._rng = Random(1)
        self._number = 0
        self.failed = 0

    async def window(self, ended: asyncio.Event) -> list[float]:
        """Seconds each request took, until `ended` is set."""
        times_s: list[float] = []
        next_s = monotonic()
        async with asyncio.TaskGroup() as tasks:
            while not ended.is_set():
                next_s += self._rng.expovariate(RATE_PER_S)
                await asyncio.sleep(max(0.0, next_s - monotonic()))
                tasks.create_task(self._one(times_s))
        return times_s

    async def _one(self, times_s: list[float]) -> None:
        self._number += 1
        request = wanted(self._number, self._rng, tokens=4, path="/v1/chat/completions")
        connection = await self._clients.take()
        began_s = monotonic()
        answer = await connection.ask(request.raw)
        times_s.append(monotonic() - began_s)
        self.failed += answer.status != 200 or not answer.ended
        self._clients.give(connection)


async def _quiet(others: Others, seconds: float) -> list[float]:
    ended = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, ended.set)
    return await others.window(ended)


async def _attacked(others: Others, plan: Attack) -> tuple[list[float], Lives]:
    ended = asyncio.Event()
    window = asyncio.create_task(others.window(ended))
    within_s = plan.body_s + plan.head_s + ATTACKERS_S
    lives = await asyncio.to_thread(report_of, ATTACKERS, plan, Lives, within_s)
    ended.set()
    return await window, lives


class Attacked(msgspec.Struct):
    """The figures of all rounds."""

    p99_quiet_s: list[float]
    p99_attacked_s: list[float]
    lives: list[Lives]
    failed: int = 0


async def attacks(options: Namespace) -> Attacked:
    """Windows without and with slow clients, in turn, before one proxy."""
    server = SimServer("sim", "instant")
    await server.start()
    timeouts = {"client_head_s": options.head_s, "client_body_s": options.body_s}
    figures = Attacked([], [], [])
    try:
        async with ProxyProcess([server.url], timeouts=timeouts) as proxy:
            others = Others(proxy)
            await _quiet(others, 2.0)
            plan = Attack(
                proxy.port, options.clients, options.clients, options.head_s, options.body_s
            )
            for _ in range(options.rounds):
                quiet = await _quiet(others, options.body_s)
                attacked, lives = await _attacked(others, plan)
                figures.p99_quiet_s.append(statistics.quantiles(quiet, n=100)[98])
                figures.p99_attacked_s.append(statistics.quantiles(attacked, n=100)[98])
                figures.lives.append(lives)
            figures.failed = others.failed
    finally:
        await server.stop()
    return figures


def report(options: Namespace, figures: Attacked) -> list[str]:
    """Print the table of the slow senders; what is not as it must be."""
    failures: list[str] = []
    heads = [each for lives in figures.lives for each in lives.heads_s]
    bodies = [each for lives in figures.lives for each in lives.bodies_s]
    never = sum(lives.never for lives in figures.lives)
    statuses: dict[str, int] = {}
    for lives in figures.lives:
        for status, times in lives.statuses.items():
            statuses[status] = statuses.get(status, 0) + times
    quiet_s = statistics.median(figures.p99_quiet_s)
    attacked_s = statistics.median(figures.p99_attacked_s)
    print(head(f"{options.clients:,} slow heads and {options.clients:,} slow bodies", ""))
    for name, given_s, lives_s in (
        ("heads", options.head_s, heads),
        ("bodies", options.body_s, bodies),
    ):
        span = f"{min(lives_s):.2f} to {max(lives_s):.2f}" if lives_s else "-"
        print(row(f"{name} closed after s, of {given_s:g} given", span))
        if not lives_s or max(lives_s) > given_s + CLOSING_S:
            failures.append(f"{name} were closed too late")
    print(row("never closed", never))
    told = ", ".join(f"{count:,} x {status}" for status, count in sorted(statuses.items()))
    print(row("answered", told))
    waits_ms = f"{quiet_s * 1e3:.1f} / {attacked_s * 1e3:.1f}"
    print(row("the others' p99 without / with, ms", waits_ms))
    print(row("the others' failures", figures.failed))
    if never:
        failures.append(f"{never} were never closed")
    if figures.failed:
        failures.append(f"{figures.failed} ordinary requests failed")
    if attacked_s > max(quiet_s * P99_FACTOR, quiet_s + P99_NOISE_S):
        failures.append("the others waited longer")
    return failures


def run(options: Namespace) -> int:
    """Print both tables; returns the exit status."""
    failures = report(options, uvloop.run(attacks(options)))
    failures += stalled.report(uvloop.run(stalled.measure(options.clients, options.stall_s)))
    return verdict(failures)


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--clients", type=count, default=1_000, help="of each kind (default 1,000)")
    parser.add_argument("--rounds", type=count, default=2, help="pairs of windows (default 2)")
    parser.add_argument(
        "--head-s", type=positive, default=10.0, help="given for a head (default 10)"
    )
    parser.add_argument(
        "--body-s", type=positive, default=60.0, help="given for a body (default 60)"
    )
    parser.add_argument(
        "--stall-s", type=positive, default=20.0, help="given a reader (default 20)"
    )
