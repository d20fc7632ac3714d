"""What is measured: which loads, how often, through whom, in which order, and what is noted.

The default takes some seven minutes with all peers, `quick` three; a quick run shows that
everything works, its figures are rough. Peers alternate, and every round begins with another one,
so that what changes on the machine during the run changes all of them.
"""

import os
import time
from collections.abc import Mapping, Sequence
from math import ceil
from statistics import median
from typing import Final

from msgspec.structs import replace as changed

from penstock.bench.client import scraped
from penstock.bench.meter import peak_memory_of
from penstock.bench.overhead.loads import (
    FirstByteLoad,
    FirstByteReport,
    LoadReport,
    Plan,
    RequestLoad,
    StreamLoad,
)
from penstock.bench.peers.peer import Running
from penstock.bench.processes import NotStarted, report_of
from penstock.bench.report import say
from penstock.bench.routing.outcome import quantile

DIRECT: Final = "direct"
MEASURED: Final = "penstock"
CLIENT: Final = "penstock.bench.overhead.client"
CLIENT_S: Final = 60.0
# Peers of the wide load, beside direct: the measured one and whom it is compared with.
WIDE: Final = (MEASURED, "nginx", "smg", "vllm-router")
# Below this share of the wanted rate, or above this share of a core for one of
# the load's own two processes, it is not the peer that is measured.
RATE_SHARE_MIN: Final = 0.98
LOAD_CORE_SHARE_MAX: Final = 0.85
# A measurement is taken again when others used more than this share of a core
# during it, as long as the plan has time for repeats.
OTHERS_SHARE_MAX: Final = 0.25


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

    def _each(self, what: StreamLoad | RequestLoad, labels: Sequence[str]) -> None:
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

    def _measure(self, what: StreamLoad | RequestLoad, label: str) -> bool:
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

    def _load(self, what: StreamLoad | RequestLoad, label: str) -> StreamLoad | RequestLoad:
        """What the client is told, no more than the peer can carry."""
        peer = self._peers.get(label)
        share, exact = (peer.load_share, not peer.rewrites) if peer else (1.0, True)
        through = changed(what, port=self._port(label), cpu_of=self._pids(label), exact=exact)
        if isinstance(through, RequestLoad):
            return changed(through, requests_per_s=ceil(share * through.requests_per_s))
        return changed(through, streams=max(1, round(share * through.streams)))

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
