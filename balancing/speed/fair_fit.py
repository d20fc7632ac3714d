"""A fit of two costs that no single client decides: each client has its own, and the median counts.

One client can make all its samples wrong. (Its prompts are in the engine's cache, and we cannot
see that, because JSON can spell one text in many ways.) However many samples it gives, it has one
vote. The median of several fits is the usual estimate that a part of all samples cannot drag: the
median of means of Nemirovsky and Yudin (1983).
"""

from math import log
from typing import Final

import xxhash

from penstock.balancing.speed.least_squares import LeastSquares, Pair

# So many clients have a fit of their own. All others share these, by their hash.
FITS: Final = 7
# A fit votes for so long after its last sample. Then the next new client may have its place.
VOTE_S: Final = 300.0
# Fits of fewer samples vote only where they are most of all.
SAMPLES_MIN: Final = 4
# Nor does a fit vote on `a` if that is a smaller part of its samples' costs (the mean square of the
# part): a fit of short prompts says how long a step takes, and next to nothing of a token.
PART_MIN: Final = 0.05
# For comparing costs with their prior: below this share of it they are alike.
SHARE_MIN: Final = 1e-3


class _Voter:
    """The fit of one client, and of those that share it. `taught_s`: of its last sample."""

    __slots__ = ("client", "fit", "taught_s")

    def __init__(self, client: str, fit: LeastSquares) -> None:
        self.client = client
        self.fit = fit
        self.taught_s = float("-inf")


class FairFit:
    """Two costs, `a` and `b`. The arguments are those of each client's `LeastSquares`.

    `samples` and `weight` are those of all fits together. Old samples weigh less.
    """

    def __init__(
        self, prior: Pair, trust: Pair, *, fade: float, surprise_max: float, least: float
    ) -> None:
        self._prior = prior
        self._trust = trust
        self._fade = fade
        self._surprise_max = surprise_max
        self._least = least
        self._voters: list[_Voter] = []
        self._owned: dict[str, _Voter] = {}
        self.a, self.b = prior
        self.samples = 0
        self.weight = 0.0

    def observe(
        self, measure: Pair, cost: float, rest: float = 0.0, client: str = "", now_s: float = 0.0
    ) -> None:
        """A client's thing with this measure was seen to cost `cost`, as in `LeastSquares`."""
        voter = self._voter_of(client, now_s)
        voter.taught_s = now_s
        told = voter.fit.observe(measure, cost, rest)
        self.samples += 1
        self.weight = self.weight * (1.0 - (1.0 - self._fade) * told) + told
        if len(self._voters) == 1:
            self.a, self.b = voter.fit.a, voter.fit.b
            return
        fits = self._voting(now_s)
        self.b = _median([each.b for each in fits], self._prior[1])
        fits = [each for each in fits if each.part_a >= PART_MIN] or fits
        self.a = _median([each.a for each in fits], self._prior[0])

    @property
    def mean_b(self) -> float:
        """The mean second measure of samples whose first measure is one."""
        weight = sum([each.fit.weight for each in self._voters])
        total = sum([each.fit.weight * each.fit.mean_b for each in self._voters])
        return total / weight if weight else 0.0

    def forget(self, share: float) -> None:
        """Take the share off the weight of all samples so far, so that new ones count more.

        A fit votes again from its next sample on.
        """
        self.weight *= 1.0 - share
        for voter in self._voters:
            voter.fit.forget(share)
            voter.taught_s = float("-inf")

    def _voting(self, now_s: float) -> list[LeastSquares]:
        """The fits that count now."""
        fits = [each.fit for each in self._voters if now_s - each.taught_s <= VOTE_S]
        sure = [each for each in fits if each.samples >= SAMPLES_MIN]
        return sure if 2 * len(sure) >= len(fits) else fits

    def _voter_of(self, client: str, now_s: float) -> _Voter:
        voter = self._owned.get(client)
        if voter is not None:
            return voter
        if len(self._voters) == FITS:
            silent = min(self._voters, key=_taught_s)
            if now_s - silent.taught_s <= VOTE_S:
                return self._voters[xxhash.xxh3_64_intdigest(client.encode()) % FITS]
            self._voters.remove(silent)
            del self._owned[silent.client]
        fit = LeastSquares(
            self._prior,
            self._trust,
            fade=self._fade,
            surprise_max=self._surprise_max,
            least=self._least,
            keep=self._fade,
        )
        voter = self._owned[client] = _Voter(client, fit)
        self._voters.append(voter)
        return voter


def _taught_s(voter: _Voter) -> float:
    return voter.taught_s


def _median(costs: list[float], prior: float) -> float:
    """The median. Of two in the middle the one nearer to the prior: either may be wrong."""
    if len(costs) == 1:
        return costs[0]
    costs = sorted(costs)
    lower, upper = costs[(len(costs) - 1) // 2], costs[len(costs) // 2]
    return lower if _off(lower, prior) < _off(upper, prior) else upper


def _off(cost: float, prior: float) -> float:
    return abs(log(max(SHARE_MIN, cost / prior)))
