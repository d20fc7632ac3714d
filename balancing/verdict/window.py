"""The last seconds of one pool, and what they say of each backend.

Gauges of engines are as old as their last scrape, and one of them alone says little. So gauges are
means over the window, and counters differences between its ends.
"""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any, Final

from penstock.balancing.admission.queued_request import WaitReason
from penstock.balancing.engine_report import EngineReport
from penstock.balancing.verdict.facts import BackendFacts, PoolFacts

WINDOW_S: Final = 10.0
# What few requests meet is counted over this time.
MINUTE_S: Final = 60.0
MARK_S: Final = 20.0
# Of one backend: failures, requests, and the same of other clients than the most frequent one.
_Counts = tuple[int, int, int, int]
# Ages of requests are told at once, and need no more than this.
AGES_S: Final = 4.0
# So many looks in a row must show the same number of sequences in an engine.
STEADY_LOOKS: Final = 4
_UNTOLD: Final = EngineReport(0.0)


# A request that waits for longer than this, beyond its own work, is slow.
WAIT_S: Final = 1.0
# Fewer in the queue are no queue.
WAITING_MIN: Final = 2.0
# Of what waits, of tokens or of clients, most: and nearly all.
MOST: Final = 0.5
NEARLY_ALL: Final = 0.8
_NO_TENANTS: Final[dict[str, Any]] = {
    "waiting_by_tenant": {},
    "served_by_tenant": {},
    "given_by_tenant": {},
    "slow_by_tenant": {},
}


@dataclass(frozen=True, slots=True)
class Seen:
    """One backend in the window. Shares are 0 to 1."""

    now: BackendFacts
    running: float
    waiting: float
    kv_usage: float  # the engine's, or by our own count if it does not tell
    unseen: float  # sequences that were sent there, and are unknown to its engine
    sent: float  # sequences that were sent there and have not ended
    gap_s: float  # between two tokens of a stream. 0.0: not known
    engine_step_s: float  # the time of a step. 0.0: not known
    prefill_step_tokens: float | None  # tokens of prompts in a step. None: not known
    steady: bool  # its engine ran the same number of sequences all the time
    preemptions: int
    left_alone: float  # the share of the time after refusals for load
    overdue_s: float
    backlog_s: float
    wanted: float  # requests in penstock's queue that would go there
    failures: int
    requests: int
    # Of the last minute. `apart`: of other clients than the one with most of them.
    minute_failures: int
    minute_apart: int
    minute_requests_apart: int
    minute_requests: int


class Window:
    """The facts of the last WINDOW_S of one pool."""

    def __init__(self) -> None:
        self._facts: deque[PoolFacts] = deque()
        # One look in MARK_S, of the last minute.
        self._marks: deque[tuple[float, dict[str, _Counts]]] = deque()

    def add(self, facts: PoolFacts) -> None:
        if self._facts:  # of tenants only the last look counts, and there may be many
            self._facts[-1] = replace(self._facts[-1], **_NO_TENANTS)
        self._facts.append(facts)
        while self._facts[0].at_s < facts.at_s - WINDOW_S:
            self._facts.popleft()
        marks = self._marks
        if not marks or marks[-1][0] <= facts.at_s - MARK_S:
            marks.append((facts.at_s, {each.name: _counts(each) for each in facts.backends}))
        while marks[0][0] < facts.at_s - MINUTE_S:
            marks.popleft()

    @property
    def now(self) -> PoolFacts:
        return self._facts[-1]

    @property
    def waits_s(self) -> float:
        """How long the first of the queue waited of late, on average."""
        return _mean([each.oldest_s for each in self._late])

    @property
    def _late(self) -> list[PoolFacts]:
        return [each for each in self._facts if each.at_s >= self.now.at_s - AGES_S]

    @property
    def refused(self) -> int:
        return max(0, self.now.refused_total - self._facts[0].refused_total)

    @property
    def waiting(self) -> float:
        """How many requests waited of late, on average."""
        return _mean([each.waiting for each in self._late])

    @property
    def slow_clients(self) -> float:
        """How many clients did not read, on average."""
        return _mean([each.slow_clients for each in self._late])

    @property
    def clients(self) -> float:
        return _mean([each.clients for each in self._late])

    def lacks(self) -> Counter[WaitReason]:
        """What the next ones waited for."""
        counts = Counter[WaitReason]()
        for each in self._late:
            counts.update(each.lacks)
        return counts

    def backends(self) -> Iterator[Seen]:
        """Those that are in the pool now, one by one: there may be a thousand."""
        history: dict[str, list[BackendFacts]] = {}
        for facts in self._facts:
            for each in facts.backends:
                history.setdefault(each.name, []).append(each)
        late = len(self._late)
        for each in self.now.backends:
            yield _seen(history[each.name], late, self._before(each))

    def _before(self, backend: BackendFacts) -> _Counts:
        """What was counted a minute ago, or when it was seen first since."""
        for _, counted in self._marks:
            if backend.name in counted:
                return counted[backend.name]
        return _counts(backend)


def _counts(each: BackendFacts) -> _Counts:
    apart = each.failures_apart_total, each.requests_apart_total
    return (each.failures_total, each.requests_total, *apart)


def _seen(history: list[BackendFacts], looks: int, before: _Counts) -> Seen:
    """`looks`: how many of the last ones tell ages. `before`: what was counted a minute ago."""
    first, now, late = history[0], history[-1], history[-looks:]
    told = [each.report for each in history if each.report is not None] or [_UNTOLD]
    oldest, newest = told[0], told[-1]
    passed_s = newest.at_s - oldest.at_s
    generated = max(0, newest.generated_tokens - oldest.generated_tokens)
    steps = max(0, newest.steps - oldest.steps)
    step_tokens = max(0, newest.step_tokens - oldest.step_tokens)
    running = _mean([each.running for each in told])
    sent = _mean([each.sequences for each in history])
    tells = told[0] is not _UNTOLD
    # A prompt that is prefilled runs, too, and makes no tokens.
    busy = min(running, _mean([each.streams for each in history]))
    return Seen(
        now=now,
        running=running,
        waiting=_mean([each.waiting - each.deferred for each in told]),
        kv_usage=_mean([each.kv_usage for each in told]) if tells else now.held_share,
        unseen=_unseen(history),
        sent=sent,
        gap_s=busy * passed_s / generated if generated else 0.0,
        engine_step_s=passed_s / steps if steps else 0.0,
        prefill_step_tokens=max(0.0, step_tokens - generated) / steps
        if steps and step_tokens
        else None,
        steady=len({each.running for each in told[-STEADY_LOOKS:]}) == 1,
        preemptions=max(0, newest.preemptions - oldest.preemptions),
        left_alone=_mean([float(each.left_alone) for each in history]),
        overdue_s=_mean([each.overdue_s for each in late]),
        backlog_s=_mean([each.backlog_s for each in late]),
        wanted=_mean([each.wanted for each in history]),
        failures=max(0, now.failures_total - first.failures_total),
        requests=max(0, now.requests_total - first.requests_total),
        minute_failures=max(0, now.failures_total - before[0]),
        minute_requests=max(0, now.requests_total - before[1]),
        minute_apart=max(0, now.failures_apart_total - before[2]),
        minute_requests_apart=max(0, now.requests_apart_total - before[3]),
    )


def _unseen(history: list[BackendFacts]) -> float:
    """How many sequences were sent there and unknown to its engine, on average. Each report counts
    once: a busy engine tells late, and does not know what was sent since."""
    unseen = [
        min(before.sequences, each.sequences) - each.report.running - each.report.waiting
        for before, each in pairwise(history)
        if each.report is not None and each.report is not before.report
    ]
    return max(0.0, _mean(unseen)) if unseen else 0.0


def _mean(values: list[float] | list[int]) -> float:
    return sum(values) / len(values)


class Scene:
    """One look at a pool. `backends`: what the window tells of each."""

    def __init__(self, window: Window, backends: list[Seen]) -> None:
        self.window = window
        self.now = window.now
        self.backends = backends
        self.serving = [each for each in self.backends if each.now.can_serve]
        self.failures = sum(each.failures for each in backends)
        self.requests = sum(each.requests for each in backends)
        self.lacks = window.lacks()
        self.queued_s = window.waits_s if window.waiting >= WAITING_MIN else 0.0

    @property
    def waits_s(self) -> float:
        """How long requests wait, in penstock or in engines, beyond their own work."""
        return max([self.queued_s, *[each.overdue_s for each in self.serving]])

    @property
    def waits(self) -> bool:
        return self.waits_s >= WAIT_S

    @property
    def gap_s(self) -> float:
        """The usual time between two tokens of a stream. 0.0: not known."""
        gaps = [each.gap_s for each in self.serving if each.gap_s]
        return median(gaps) if gaps else 0.0

    def share(self, *lacks: WaitReason) -> float:
        """Of the next ones in the queue, how many wait for one of these.

        Who waits because others go first does not count: they wait for what those lack.
        """
        counted = self.lacks.total() - self.lacks[WaitReason.CLASS] - self.lacks[WaitReason.TURN]
        if not self.queued_s or not counted:
            return 0.0
        return sum(self.lacks[each] for each in lacks) / counted


def only(backends: list[Seen]) -> str:
    """The name of the only one."""
    return backends[0].now.name if len(backends) == 1 else ""
