"""The last seconds of one pool, and what they say of each backend.

Gauges of engines are as old as their last scrape, and one of them alone says little. So gauges are
means over the window, and counters differences between its ends.
"""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock.balancing.admission.queued_request import WaitReason
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
    told = [each for each in history if each.told_s is not None]
    running = _mean([each.running for each in told]) if told else 0.0
    waiting = _mean([each.waiting for each in told]) if told else 0.0
    sent = _mean([each.sequences for each in history])
    known = running + waiting + (_mean([each.deferred for each in told]) if told else 0.0)
    passed_s = generated = steps = step_tokens = preemptions = 0.0
    if len(told) > 1 and told[-1].told_s is not None and told[0].told_s is not None:
        passed_s = told[-1].told_s - told[0].told_s
        generated = max(0, told[-1].generated_tokens - told[0].generated_tokens)
        steps = max(0, told[-1].steps - told[0].steps)
        step_tokens = max(0, told[-1].step_tokens - told[0].step_tokens)
        preemptions = max(0, told[-1].preemptions - told[0].preemptions)
    # A prompt that is prefilled runs, too, and makes no tokens.
    busy = min(running, _mean([each.streams for each in history])) if told else 0.0
    return Seen(
        now=now,
        running=running,
        waiting=waiting,
        kv_usage=_mean([each.kv_usage for each in told]) if told else now.held_share,
        unseen=max(0.0, sent - known) if told else 0.0,
        sent=sent,
        gap_s=busy * passed_s / generated if generated else 0.0,
        engine_step_s=passed_s / steps if steps else 0.0,
        prefill_step_tokens=max(0.0, step_tokens - generated) / steps
        if steps and step_tokens
        else None,
        steady=len({each.running for each in told[-STEADY_LOOKS:]}) == 1,
        preemptions=int(preemptions),
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


def _mean(values: list[float] | list[int]) -> float:
    return sum(values) / len(values)
