"""Two sequential tests of "bad or not", which may be looked at after each request.

Requests are compared in cells: one kind of request in one stretch of time. In a cell the canary
has n requests and x bad ones, the stable version N and X. A cell's e-value is a number that no
null hypothesis lets be above 1 on average. Their product over cells is a test martingale, so the
chance that it ever reaches 1/chance is at most `chance` (Ville, 1939), whenever one looks and
whenever one stops (Shafer, "Testing by betting", 2021; Ramdas et al., "Game-theoretic statistics
and safe anytime-valid inference", 2023).

**Worse.** Null: the canary's share of bad ones is p <= (1 + r) P + m, where P is the stable's. For
a bet a >= 0 and b = a n (1 + r) / N <= 1 the e-value is (1 + a)^x (1 - b)^X exp(-a n m).
Each factor of one request is at most exp(a p), or exp(-b P), on average, and the exponents add
up to no more than a n m. With r = m = 0 this is the likelihood ratio of the safe logrank test (ter
Schure, Pérez-Ortiz, Ly and Grünwald, 2020), which needs no P either.

**Harmless.** Null: p >= P + M. For 0 < b < 1 and a = n b / N: (1 - b)^x (1 + a)^X exp(b n M).

Several bets are averaged: a mixture of martingales is one (Robbins, 1970).

**One hostile client** is in one group, but nobody knows in which. A group of the canary's clients
is left out by taking away its share of the exponents; for the stable's factor that is (1 - b)^(f X)
with a share f <= 1, which Bernoulli's inequality allows. A group of the stable's clients is left
out of X and N. So all of it is kept for each group of the stable's that may be left out.
"""

from collections.abc import Mapping, Sequence
from math import exp, inf, log, log1p
from typing import Final

from penstock.balancing.canary.groups import GROUPS

# A group's requests in a cell, and the bad ones.
Tally = Mapping[int, tuple[int, int]]

# The bets for what is rare (errors) and for what a quarter of the requests are (late ones). Where
# both versions have as many requests, only small ones win by small differences.
RARE_BETS: Final = (5.0, 15.0)
COMMON_BETS: Final = (0.1, 0.4)
RARE_HARMLESS_BETS: Final = (0.3, 0.85)
COMMON_HARMLESS_BETS: Final = (0.1, 0.35)
# A bet that risks everything on one bad request of the stable's cannot recover.
RISK_MAX: Final = 0.9
# Where the evidence is kept of which no group of the stable's is left out.
NOBODY: Final = GROUPS
ALL: Final = range(GROUPS + 1)


class Worse:
    """Evidence that the canary is worse."""

    def __init__(self, bets: Sequence[float], slack: float, margin: float, *, strict: bool) -> None:
        """`slack`, `margin`: r, but for fresh requests, and m. `strict`: whichever group of the
        stable's is left out must show it; else their average decides, so that no client of the
        stable's can hide it.
        """
        self._bets = tuple(bets)
        self._slack = slack
        self._margin = margin
        self._strict = strict
        self._logs = _logs(len(self._bets))

    def add(self, canary: Tally, stable: Tally, *, fresh: bool = False) -> None:
        """One more cell. `fresh`: all requests came by lot (`groups.py`), so r is 0."""
        n, _ = _sums(canary)
        times = 1.0 if fresh else 1.0 + self._slack
        without = _without_each(stable)
        for bet, logs in zip(self._bets, self._logs, strict=True):
            for row, (number, its_bad) in zip(logs, without, strict=True):
                if number:
                    a = min(bet, RISK_MAX * number / (n * times))
                    each = its_bad * log1p(-a * n * times / number) / n - a * self._margin
                    _count(row, canary, log1p(a), each)

    @property
    def plain_evidence(self) -> float:
        """The logarithm of the e-value of all requests."""
        return _mean([sum(logs[NOBODY]) for logs in self._logs])

    @property
    def evidence(self) -> float:
        """The same, though one client of the stable's may hide it, or make it up."""
        return self._over_stable([_mean([sum(logs[i]) for logs in self._logs]) for i in ALL])

    @property
    def common_evidence(self) -> float:
        """That without the loudest group, which one client may have made so."""
        return self._over_stable(
            [_mean([_without_loudest(logs[i]) for logs in self._logs]) for i in ALL]
        )

    def _over_stable(self, found: list[float]) -> float:
        """`found`: for each group of the stable's that is left out, and for none."""
        return min(found[:NOBODY]) if self._strict else _mean(found)


class Harmless:
    """Evidence that the canary is not worse by more than the margin."""

    def __init__(self, bets: Sequence[float], margin: float) -> None:
        """`margin`: M."""
        self._bets = tuple(bets)
        self._margin = margin
        self._logs = _logs(len(self._bets))

    def add(self, canary: Tally, stable: Tally) -> None:
        """One more cell."""
        n, _ = _sums(canary)
        without = _without_each(stable)
        for b, logs in zip(self._bets, self._logs, strict=True):
            for row, (number, its_bad) in zip(logs, without, strict=True):
                # Without any of the stable's, p is at least M all the same.
                of_stable = its_bad * log1p(n * b / number) / n if number else 0.0
                _count(row, canary, log1p(-b), of_stable + b * self._margin)

    @property
    def plain_evidence(self) -> float:
        """The logarithm of the e-value of all requests."""
        return _mean([sum(logs[NOBODY]) for logs in self._logs])

    @property
    def common_evidence(self) -> float:
        """The same without the group that is the most in favour, and with a chance for each that
        it accuses falsely."""
        return min(
            [_mean([_without_extremes(logs[i]) for logs in self._logs]) for i in range(GROUPS)]
        )


def _logs(bets: int) -> list[list[list[float]]]:
    """For each bet, each group of the stable's that is left out, and each of the canary's."""
    return [[[0.0] * GROUPS for _ in ALL] for _ in range(bets)]


def _sums(tally: Tally) -> tuple[int, int]:
    number = sum([requests for requests, _ in tally.values()])
    return number, sum([bad for _, bad in tally.values()])


def _without_each(stable: Tally) -> list[tuple[int, int]]:
    """All requests and bad ones without those of each group, and of all groups at last."""
    number, bad = _sums(stable)
    found = [(number, bad)] * (GROUPS + 1)
    for group, (requests, its_bad) in stable.items():
        found[group] = (number - requests, bad - its_bad)
    return found


def _count(logs: list[float], canary: Tally, for_bad: float, for_each: float) -> None:
    for group, (requests, bad) in canary.items():
        logs[group] += bad * for_bad + requests * for_each


def _without_loudest(logs: Sequence[float]) -> float:
    return sum(logs) - max(0.0, max(logs))


def _without_extremes(logs: Sequence[float]) -> float:
    """Half of the stake is on everybody's being honest, the rest on each group's not being so."""
    total = sum(logs)
    in_order = sorted(logs)
    kept = total - max(0.0, in_order[-1])
    return _mean([kept, max(kept, kept - in_order[0]) - log(GROUPS)])


def _mean(logs: Sequence[float]) -> float:
    most = max(logs)
    if most == -inf:
        return most
    return most + log(sum([exp(each - most) for each in logs]) / len(logs))
