"""One objective of an SLO: which requests are good, how many are, and its state.

How fast its error budget burns says when that is worth a page or a ticket. The windows and parts
are those of Google's SRE workbook: 2 % of the budget in an hour, 5 % in six hours, 10 % in three
days. For a budget of 30 days or more that is a burn rate of 14.4, 6 and 1. For a shorter one it is
less, so that an alert comes before the budget is gone. The short window lets an alert clear soon.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from penstock.balancing.slo.sample import VAIN_S, Outcome, Sample
from penstock.balancing.slo.windows import Latencies, Ring, Windows
from penstock.conf.slo import PercentileSettings, SloSettings

DAY_S: Final = 86_400.0
# Fewer bad requests in the long window never alarm: one of ten may be anything.
BAD_MIN: Final = 10
# A burn rate is at most 1 / budget. Where a rate is out of reach, nearly all requests must be bad.
BAD_SHARE_MOST: Final = 0.9


class Pair(NamedTuple):
    """A long and a short window. The long one burns `part` of the budget if both alarm."""

    short: str
    long: str
    part: float
    pages: bool


SPANS_S: Final = {
    "5m": 300.0,
    "30m": 1_800.0,
    "1h": 3_600.0,
    "6h": 6 * 3_600.0,
    "3d": 3 * DAY_S,
}
PAIRS: Final = (
    Pair("5m", "1h", 0.02, pages=True),
    Pair("30m", "6h", 0.05, pages=True),
    Pair("6h", "3d", 0.10, pages=False),
)
USUAL_S: Final = 30 * DAY_S
# A budget that burns more slowly is worth no page: it lasts for a quarter of its time or longer.
PAGES_MIN: Final = 4.0
TICKETS_MIN: Final = 1.0
# Of what is allowed, so much is used when a state begins, and when it ends.
WARNS_ABOVE: Final = 0.8
CALM_BELOW: Final = 0.7
CRITICAL_ABOVE: Final = 1.0
EASED_BELOW: Final = 0.9
# The kinds of times: the key of their targets, and what their percentiles are called.
KINDS: Final = ("ttft", "itl", "e2e")
Targets = tuple[tuple[str, float], ...]


def pairs_within(window_s: float) -> list[Pair]:
    """Those that a budget for this time has."""
    return [pair for pair in PAIRS if SPANS_S[pair.long] <= window_s]


def rate_of(pair: Pair, share: float, window_s: float) -> float:
    """The burn rate from which a pair alarms.

    `share`: of the requests that must be good. `window_s`: of the budget, the long window or more.
    """
    long_s = SPANS_S[pair.long]
    spent = window_s / long_s  # the rate at which the long window burns all of it
    least = min(spent, PAGES_MIN if pair.pages else TICKETS_MIN)
    rate = max(least, pair.part * min(window_s, USUAL_S) / long_s)
    return min(rate, BAD_SHARE_MOST / (1.0 - share))


def burn_rate(ring: Ring, share: float) -> float:
    """How many times faster than evenly over the budget's time. 0 without requests."""
    good, bad = ring.sums
    return bad / (good + bad) / (1.0 - share) if good + bad else 0.0


class State(IntEnum):
    """The state of an objective."""

    OK = 0
    WARNING = 1
    CRITICAL = 2

    @property
    def word(self) -> str:
        return self.name.lower()


def next_state(before: State, used: float) -> State:
    """The state after `before`. `used`: how much of the limit is used, 1 is all of it.

    A worse state begins at once. A better one begins when 10 % less is used than would have been
    needed for the worse one.
    """
    if used > CRITICAL_ABOVE or (before is State.CRITICAL and used > EASED_BELOW):
        return State.CRITICAL
    if used > WARNS_ABOVE or (before is not State.OK and used > CALM_BELOW):
        return State.WARNING
    return State.OK


@dataclass(frozen=True, slots=True)
class Goal:
    """What an objective asks for: `share` of the requests must be good.

    `targets`: kinds of times with their longest in seconds. For a percentile it is one.
    `patience_s`: a client that leaves without an answer after this time may count as bad.
    """

    name: str
    share: float
    targets: Targets = ()
    patience_s: float = VAIN_S

    @property
    def timed(self) -> bool:
        """Whether it is a percentile of one kind of times."""
        return self.name.partition("_")[0] in KINDS

    def judge(self, sample: Sample) -> bool | None:
        """Whether a request is good. None: it does not count."""
        outcome = sample.outcome
        if self.timed:
            kind, target_s = self.targets[0]
            return sample.meets(kind, target_s)
        if outcome is Outcome.FAULT:
            return None
        if outcome is Outcome.SHED:
            return None if self.name == "error_rate" else False
        if outcome is Outcome.FAILED or sample.in_vain(self.patience_s):
            return False
        if self.name == "goodput":
            for kind, target_s in self.targets:
                if sample.meets(kind, target_s) is False:
                    return False
        return True if outcome is Outcome.SERVED else None


def targets_of(settings: SloSettings, kind: str) -> list[tuple[str, float]]:
    """The percentiles of a kind of times that have a target, the lowest first."""
    percentiles: PercentileSettings | None = getattr(settings, f"{kind}_s")
    return percentiles.targets if percentiles is not None else []


def goals_of(settings: SloSettings) -> Iterator[Goal]:
    """All objectives of an entry of the configuration."""
    highest, patience_s = [], VAIN_S
    for kind in KINDS:
        targets = targets_of(settings, kind)
        for percentile, target_s in targets:
            share = int(percentile.removeprefix("p")) / 100
            yield Goal(f"{kind}_{percentile}", share, ((kind, target_s),))
        highest += [(kind, target_s) for _, target_s in targets[-1:]]
        if kind == "ttft" and targets:
            patience_s = min(patience_s, targets[-1][1])
    if settings.availability is not None:
        yield Goal("availability", settings.availability, (), patience_s)
    if settings.error_rate is not None:
        yield Goal("error_rate", 1.0 - settings.error_rate, (), patience_s)
    if settings.goodput is not None:
        yield Goal("goodput", settings.goodput, tuple(highest), patience_s)


class Limit(NamedTuple):
    """What an objective is near to, and how much of it is used: 1 is all.

    `kind`: `percentile`, `burn` (in the window `span`) or `budget`. Empty if nothing is used.
    """

    used: float = 0.0
    kind: str = ""
    span: str = ""


class Objective:
    """A goal with its counts. `nearest`: the limit that its state follows."""

    def __init__(self, goal: Goal, window_s: float, now_s: float) -> None:
        """`window_s`: the time of its budget. It has counts from `now_s` on."""
        self.goal = goal
        self.window_s = window_s
        self.since_s = now_s
        self.state = State.OK
        self.nearest = Limit()
        spans = {name: span_s for name, span_s in SPANS_S.items() if span_s <= window_s}
        self.windows = Windows((*spans.values(), window_s), now_s)
        rings = self.windows.rings
        self._rings: Mapping[str, Ring] = dict(zip(spans, rings, strict=False))
        self._budget = rings[-1]

    def counts_as(self, goal: Goal, window_s: float) -> bool:
        """Whether what it has counted is what `goal` would have."""
        same = (goal.name, goal.targets) == (self.goal.name, self.goal.targets)
        return same and window_s == self.window_s

    # What is read of it, after `advance` ---------------------------------------------------

    @property
    def compliance(self) -> float | None:
        """The share of good requests over its budget's time. None without requests."""
        return _share_of(self._budget)

    @property
    def budget_counts(self) -> tuple[int, int]:
        """The good and the bad requests over its budget's time."""
        good, bad = self._budget.sums
        return good, bad

    @property
    def burn_rates(self) -> dict[str, float]:
        """By window."""
        return {name: burn_rate(ring, self.goal.share) for name, ring in self._rings.items()}

    @property
    def compliances(self) -> dict[str, float | None]:
        """The share of good requests by window. None without requests."""
        return {name: _share_of(ring) for name, ring in self._rings.items()}

    def budget_spent(self, now_s: float) -> float:
        """The share of its error budget that is spent.

        Until the counts reach back over the budget's whole time, the requests that are missing
        are taken to be as many as those that came. Else the first failure after a start would
        spend it all.
        """
        good, bad = self.budget_counts
        if not bad:
            return 0.0
        observed_s = min(self.window_s, max(1.0, now_s - self.since_s))
        expected = (good + bad) * self.window_s / observed_s
        return bad / (expected * (1.0 - self.goal.share))

    def evaluate(self, now_s: float, latencies: Latencies | None) -> None:
        """Bring the counts and the state up to date. `latencies`: those of its kind."""
        self.windows.advance(now_s)
        self.nearest = max(self._limits(now_s, latencies), default=Limit())
        self.state = next_state(self.state, self.nearest.used)

    def burned(self, span: str) -> tuple[int, int]:
        """The good and the bad requests in one of the windows."""
        good, bad = self._rings[span].sums
        return good, bad

    def _limits(self, now_s: float, latencies: Latencies | None) -> Iterator[Limit]:
        """How much is used of each limit. Few bad requests use nothing."""
        if self._budget.sums[1] >= BAD_MIN:
            yield Limit(self.budget_spent(now_s), "budget")
        for pair in pairs_within(self.window_s):
            long, short = self._rings[pair.long], self._rings[pair.short]
            if long.sums[1] < BAD_MIN or (self.goal.timed and pair.pages):
                continue  # a percentile says more than a fast burn, and sooner
            # What is missing of a window after a start is taken to be good.
            observed = min(1.0, (now_s - self.since_s) / SPANS_S[pair.long])
            burns = burn_rate(long, self.goal.share) * observed
            burns = min(burns, burn_rate(short, self.goal.share))
            reached = burns / rate_of(pair, self.goal.share, self.window_s)
            # A ticket is a warning, no more.
            used = reached if pair.pages else min(reached, EASED_BELOW)
            yield Limit(used, "burn", pair.long)
        if latencies is not None:
            yield Limit(self._slowness(latencies), "percentile")

    def _slowness(self, latencies: Latencies) -> float:
        """The measured percentile over its target: of the last hour and of its last minutes.

        Both must be slow: the hour tells that it is no moment, the minutes that it is not over.
        """
        target_s = self.goal.targets[0][1]
        if latencies.above(target_s * WARNS_ABOVE) < BAD_MIN:
            return 0.0
        hour_s = latencies.percentile_s(self.goal.share)
        recent_s = latencies.recent_s(self.goal.share)
        if hour_s is None or recent_s is None:
            return 0.0
        # A bound at 80 % of a target must not be a rounding error above it.
        return round(min(hour_s, recent_s) / target_s, 9)


def _share_of(ring: Ring) -> float | None:
    good, bad = ring.sums
    return good / (good + bad) if good + bad else None
