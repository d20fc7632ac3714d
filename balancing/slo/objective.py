"""One objective of an SLO: which requests are good, how many are, and its state."""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from penstock.balancing.slo.burn import (
    BAD_MIN,
    SPANS_S,
    burn_rate,
    pairs_within,
    rate_of,
)
from penstock.balancing.slo.latencies import Latencies
from penstock.balancing.slo.sample import Outcome, Sample
from penstock.balancing.slo.state import EASED_BELOW, WARNS_ABOVE, State, next_state
from penstock.balancing.slo.vain import VAIN_S
from penstock.balancing.slo.windows import Ring, Windows
from penstock.conf.slo import SloSettings

# The kinds of times: the key of their targets, and what their percentiles are called.
KINDS: Final = ("ttft", "itl", "e2e")
Targets = tuple[tuple[str, float], ...]


class Goal:
    """What an objective asks for: `share` of the requests must be good.

    `targets`: kinds of times with their longest in seconds. For a percentile it is one.
    """

    __slots__ = ("name", "patience_s", "share", "targets")

    def __init__(
        self, name: str, share: float, targets: Targets = (), patience_s: float = VAIN_S
    ) -> None:
        """`patience_s`: who leaves later, and with nothing, may have waited in vain."""
        self.name = name
        self.share = share
        self.targets = targets
        self.patience_s = patience_s

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


def goals_of(settings: SloSettings) -> Iterator[Goal]:
    """All objectives of an entry of the configuration."""
    highest, patience_s = [], VAIN_S
    for kind, percentiles in zip(
        KINDS, (settings.ttft_s, settings.itl_s, settings.e2e_s), strict=True
    ):
        targets = percentiles.targets if percentiles is not None else []
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

    __slots__ = ("_budget", "_rings", "goal", "nearest", "since_s", "state", "window_s", "windows")

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
        valid = self._budget.good + self._budget.bad
        return self._budget.good / valid if valid else None

    @property
    def budget_counts(self) -> tuple[int, int]:
        """The good and the bad requests over its budget's time."""
        return self._budget.good, self._budget.bad

    @property
    def burn_rates(self) -> dict[str, float]:
        """By window."""
        return {name: burn_rate(ring, self.goal.share) for name, ring in self._rings.items()}

    @property
    def compliances(self) -> dict[str, float | None]:
        """The share of good requests by window. None without requests."""
        return {
            name: ring.good / (ring.good + ring.bad) if ring.good + ring.bad else None
            for name, ring in self._rings.items()
        }

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
        return self._rings[span].good, self._rings[span].bad

    def _limits(self, now_s: float, latencies: Latencies | None) -> Iterator[Limit]:
        """How much is used of each limit. Few bad requests use nothing."""
        if self._budget.bad >= BAD_MIN:
            yield Limit(self.budget_spent(now_s), "budget")
        for pair in pairs_within(self.window_s):
            long, short = self._rings[pair.long], self._rings[pair.short]
            if long.bad < BAD_MIN or (self.goal.timed and pair.pages):
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
