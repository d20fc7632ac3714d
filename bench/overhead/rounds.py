"""What is measured: which loads, how often, through whom, in which order, and what is noted.

The default takes some seven minutes with all peers, `quick` three; a quick run shows that
everything works, its figures are rough. Peers alternate, and every round begins with another one,
so that what changes on the machine during the run changes all of them.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import median
from typing import Final

from penstock.bench.client import scraped
from penstock.bench.meter import peak_memory_of
from penstock.bench.overhead.loads import (
    FirstByteLoad,
    FirstByteReport,
    LoadReport,
    RequestLoad,
    StreamLoad,
)
from penstock.bench.peers.peer import Running
from penstock.bench.processes import NotStarted, report_of
from penstock.bench.report import say
from penstock.bench.routing.outcome import quantile

DIRECT: Final = "direct"
# Rounds at most of what shows enough in few: one stream, long prompts, thousands of streams.
RARE: Final = 3
CLIENT: Final = "penstock.bench.overhead.client"
CLIENT_S: Final = 60.0
# Peers of the wide load, beside direct: the measured one and whom it is compared with.
WIDE: Final = ("penstock", "nginx", "smg", "vllm-router")
# Below this share of the wanted rate, or above this share of a core for one of
# the load's own two processes, it is not the peer that is measured.
RATE_SHARE_MIN: Final = 0.98
LOAD_CORE_SHARE_MAX: Final = 0.85
# A measurement is taken again when others used more than this share of a core
# during it, as long as the plan has time for repeats.
OTHERS_SHARE_MAX: Final = 0.25


@dataclass(frozen=True, slots=True)
class Streams:
    """So many streams open at once, measured in a window of all."""

    metric: str
    streams: int
    events_per_s: int
    ramp_s: float
    settle_s: float
    window_s: float
    rounds: int

    @property
    def title(self) -> str:
        many = f"{self.streams:,} stream{'s' if self.streams > 1 else ''}"
        return f"{many} x {self.events_per_s}/s"


@dataclass(frozen=True, slots=True)
class Requests:
    """So many plain requests a second; `prompt_bytes` of 0 is a short question.

    0 requests a second: a closed loop, in which each answer is followed by the next request.
    """

    metric: str
    requests_per_s: int
    window_s: float
    rounds: int
    prompt_bytes: int = 0
    connections: int = 16
    settle_s: float = 0.5

    @property
    def title(self) -> str:
        if not self.requests_per_s:
            return f"small JSON request, closed loop of {self.connections}"
        if not self.prompt_bytes:
            return "small JSON request"
        return f"request with a prompt of {self.prompt_bytes // 1_000:,} KB"


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of one run. A round measures every peer once, each time in another order."""

    rounds: int
    streams: tuple[Streams, ...]
    requests: tuple[Requests, ...]
    wide: Streams
    turns: int = 300
    repeats_s: float = 30.0  # to take disturbed measurements again

    @property
    def loads(self) -> tuple[Streams | Requests, ...]:
        return (*self.streams, *self.requests, self.wide)

    def of_rounds(self, rounds: int) -> "Plan":
        """The same with other rounds; what takes long is not done more than RARE times."""
        rare = min(rounds, RARE)
        return replace(
            self,
            rounds=rounds,
            streams=tuple(
                replace(each, rounds=rounds if each.streams > 1 else rare) for each in self.streams
            ),
            requests=tuple(
                replace(each, rounds=rare if each.prompt_bytes else rounds)
                for each in self.requests
            ),
            wide=replace(self.wide, rounds=rare),
        )


DEFAULT: Final = Plan(
    rounds=2,
    streams=(
        Streams("stream", 300, 50, ramp_s=1.0, settle_s=0.5, window_s=3.0, rounds=2),
        Streams("single", 1, 50, ramp_s=0.0, settle_s=0.3, window_s=2.0, rounds=1),
    ),
    requests=(
        Requests("request", 2_000, window_s=2.5, rounds=2),
        Requests("closed", 0, window_s=1.5, rounds=2),
        Requests("prompt_2k", 1_000, window_s=1.5, rounds=1, prompt_bytes=2_000),
        Requests("prompt_220k", 100, window_s=1.5, rounds=1, prompt_bytes=220_000),
        Requests("prompt_1m", 20, window_s=2.0, rounds=1, prompt_bytes=1_000_000),
    ),
    wide=Streams("wide", 2_000, 20, ramp_s=3.0, settle_s=1.0, window_s=4.0, rounds=2),
)
QUICK: Final = replace(
    DEFAULT,
    rounds=1,
    streams=tuple(replace(each, rounds=1, window_s=1.5) for each in DEFAULT.streams),
    requests=tuple(replace(each, rounds=1, window_s=1.0) for each in DEFAULT.requests),
    wide=replace(DEFAULT.wide, rounds=1, ramp_s=2.0, window_s=1.5),
    turns=200,
    repeats_s=8.0,
)


class Results:
    """Values by metric and subject (a peer, or `direct`: no peer between)."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, list[float]]] = {}
        self.faults: list[str] = []
        self.faulty: set[str] = set()
        """The subjects that had a fault."""
        self.saturated: list[str] = []

    def fault(self, metric: str, subject: str, what: str) -> None:
        self.faults.append(f"{metric} through {subject}: {what}")
        self.faulty.add(subject)

    def add(self, metric: str, subject: str, value: float) -> None:
        self.values.setdefault(metric, {}).setdefault(subject, []).append(value)

    def rounds(self, metric: str, subject: str) -> list[float]:
        return self.values.get(metric, {}).get(subject, [])

    def median(self, metric: str, subject: str) -> float | None:
        values = self.rounds(metric, subject)
        return median(values) if values else None

    def ratio(self, metric: str, subject: str, other: str) -> float | None:
        """The quotient of the medians; None when either lacks, or there is nothing to divide by."""
        above, below = self.median(metric, subject), self.median(metric, other)
        return above / below if above is not None and below is not None and below > 0 else None


def order(names: list[str], number: int) -> list[str]:
    """The names, rotated by the number of the round."""
    shift = number % len(names)
    return names[shift:] + names[:shift]


class Rounds:
    """One run over the peers that have started, by their labels."""

    def __init__(self, plan: Plan, backend: Running, peers: Mapping[str, Running]) -> None:
        self._plan = plan
        self._backend = backend
        self._peers = peers
        self._repeats_left_s = plan.repeats_s
        self.results = Results()

    def run(self) -> Results:
        plan = self._plan
        peers = list(self._peers)
        for streams in plan.streams:
            self._each(streams, peers)
        self._memory("memory_mib", peers)
        for requests in plan.requests:
            self._each(requests, peers)
        for number in range(plan.rounds):
            say(f"first byte, round {number + 1} of {plan.rounds}")
            self._first_byte(number)
        wide = [label for label in peers if label.split()[0] in WIDE]
        self._each(plan.wide, [DIRECT, *wide])
        self._wide_added(wide)
        self._memory("wide_memory_mib", wide)
        return self.results

    def _each(self, what: Streams | Requests, labels: Sequence[str]) -> None:
        for number in range(what.rounds):
            for label in order(list(labels), number):
                say(f"{what.metric}, round {number + 1} of {what.rounds}: {label}")
                began_s = time.monotonic()
                try:
                    while not self._measure(what, label):
                        say("others were busy: again")
                        self._repeats_left_s -= time.monotonic() - began_s
                        began_s = time.monotonic()
                except (NotStarted, ProcessLookupError, OSError) as error:
                    self.results.fault(what.metric, label, str(error))

    def _measure(self, what: Streams | Requests, label: str) -> bool:
        """One window; False when it is better taken again."""
        load = self._load(what, label)
        wide = what is self._plan.wide
        peer = self._peers.get(label)
        with scraped(peer.metrics_port if wide and peer else None):
            report = report_of(CLIENT, load, LoadReport, CLIENT_S)
        if not self._note(what.metric, label, report, load.wanted_per_s):
            return False
        if wide:
            for percent, value in report.gap_ms.items():
                self.results.add(f"wide_gap_{percent}_ms", label, value)
            for percent, value in report.late_ms.items():
                self.results.add(f"wide_late_{percent}_ms", label, value)
        return True

    def _load(self, what: Streams | Requests, label: str) -> StreamLoad | RequestLoad:
        """What the client is told, no more than the peer can carry."""
        peer = self._peers.get(label)
        share = peer.load_share if peer else 1.0
        exact = not (peer and peer.rewrites)
        if isinstance(what, Requests):
            return RequestLoad(
                port=self._port(label),
                cpu_of=self._pids(label),
                connections=what.connections,
                requests_per_s=ceil(share * what.requests_per_s),
                settle_s=what.settle_s,
                window_s=what.window_s,
                prompt_bytes=what.prompt_bytes,
                exact=exact,
            )
        return StreamLoad(
            port=self._port(label),
            cpu_of=self._pids(label),
            streams=max(1, round(share * what.streams)),
            events_per_s=what.events_per_s,
            ramp_s=what.ramp_s,
            settle_s=what.settle_s,
            window_s=what.window_s,
            exact=exact,
        )

    def _first_byte(self, number: int) -> None:
        """Each peer beside direct alone: in a turn of all, each would evict the others' code."""
        for label in order(list(self._peers), number):
            ports = {name: self._port(name) for name in order([DIRECT, label], number)}
            try:
                load = FirstByteLoad(ports, self._plan.turns)
                report = report_of(CLIENT, load, FirstByteReport, CLIENT_S)
            except NotStarted as error:
                self.results.fault("first byte", label, str(error))
                continue
            direct = report.ms[DIRECT]
            added = [through - own for through, own in zip(report.ms[label], direct, strict=True)]
            for name, values in ((DIRECT, direct), (label, added)):
                self.results.add("first_byte_p50_ms", name, quantile(values, 0.5))
                self.results.add("first_byte_p99_ms", name, quantile(values, 0.99))

    def _note(self, metric: str, name: str, report: LoadReport, wanted_per_s: float) -> bool:
        """Keep a report; False when it is better taken again. Faults are always kept."""
        results = self.results
        for fault, count in report.broken.items():
            results.fault(metric, name, f"{count} x {fault}")
        others = report.others_share(os.cpu_count() or 1)
        if others > OTHERS_SHARE_MAX and self._repeats_left_s > 0:
            return False
        if name != DIRECT:
            results.add(f"{metric}_us", name, report.us_each("peer"))
        if wanted_per_s:
            results.add(f"{metric}_percent", name, 100 * report.per_s / wanted_per_s)
        results.add(f"{metric}_broken", name, sum(report.broken.values()))
        results.add(f"{metric}_others_percent", name, 100 * others)
        results.add(f"{metric}_backend_percent", name, 100 * report.core_share("backend"))
        results.add(f"{metric}_client_percent", name, 100 * report.core_share("client"))
        if not wanted_per_s:  # a closed loop has no rate, and its load may be as busy as the peer
            return True
        share = report.per_s / wanted_per_s
        own = max(report.core_share("backend"), report.core_share("client"))
        if share < RATE_SHARE_MIN or own > LOAD_CORE_SHARE_MAX:
            results.saturated.append(
                f"{metric} through {name}: {share:.0%} of the wanted rate, "
                f"the load's busier process at {own:.0%} of a core, others at {others:.0%}"
            )
        return True

    def _wide_added(self, names: Sequence[str]) -> None:
        """What a peer adds to direct, round by round."""
        for metric in ("wide_gap_p99_ms", "wide_late_p99_ms"):
            direct = self.results.rounds(metric, DIRECT)
            for name in names:
                through = self.results.rounds(metric, name)
                if len(through) == len(direct):
                    for value, own in zip(through, direct, strict=True):
                        self.results.add(metric.replace("_p99", "_added_p99"), name, value - own)

    def _memory(self, metric: str, labels: Sequence[str]) -> None:
        for label in labels:
            peer = self._peers[label]
            if peer.process.poll() is None:
                self.results.add(metric, label, peak_memory_of(peer.pid) / 2**20)

    def _port(self, name: str) -> int:
        return self._backend.port if name == DIRECT else self._peers[name].port

    def _pids(self, name: str) -> dict[str, int]:
        own = {"backend": self._backend.pid}
        return own if name == DIRECT else own | {"peer": self._peers[name].pid}
