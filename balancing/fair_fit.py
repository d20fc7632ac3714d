"""A fit of two costs that no single client decides: each client has its own, and the median counts.

One client can make all its samples wrong. (Its prompts are in the engine's cache, and we cannot
see that, because JSON can spell one text in many ways.) However many samples it gives, it has one
vote. The median of several fits is the usual estimate that a part of all samples cannot drag: the
median of means of Nemirovsky and Yudin (1983).
"""

from math import log
from typing import Final

import xxhash

from penstock.balancing.least_squares import LeastSquares, Pair

# So many clients have a fit of their own. All others share these, by their hash.
FITS: Final = 7
# A fit of fewer samples votes only where no fit has more.
SAMPLES_MIN: Final = 4
# For comparing costs with their prior: below this share of it they are alike.
SHARE_MIN: Final = 1e-3


class FairFit:
    """Two costs, `a` and `b`. The arguments are those of each client's `LeastSquares`.

    `samples` and `weight` are those of all fits together. Old samples weigh less.
    """

    __slots__ = (
        "_fade",
        "_fits",
        "_least",
        "_owners",
        "_prior",
        "_surprise_max",
        "_trust",
        "a",
        "b",
        "samples",
        "weight",
    )

    def __init__(
        self, prior: Pair, trust: Pair, *, fade: float, surprise_max: float, least: float
    ) -> None:
        self._prior = prior
        self._trust = trust
        self._fade = fade
        self._surprise_max = surprise_max
        self._least = least
        self._fits: list[LeastSquares] = []
        self._owners: dict[str, LeastSquares] = {}
        self.a, self.b = prior
        self.samples = 0
        self.weight = 0.0

    def observe(self, measure: Pair, cost: float, rest: float = 0.0, client: str = "") -> None:
        """A client's thing with this measure was seen to cost `cost`, as in `LeastSquares`."""
        told = self._fit_of(client).observe(measure, cost, rest)
        self.samples += 1
        self.weight = self.weight * (1.0 - (1.0 - self._fade) * told) + told
        fits = [each for each in self._fits if each.samples >= SAMPLES_MIN] or self._fits
        self.a = _median([each.a for each in fits], self._prior[0])
        self.b = _median([each.b for each in fits], self._prior[1])

    def forget(self, share: float) -> None:
        """Take the share off the weight of all samples so far, so that new ones count more."""
        self.weight *= 1.0 - share
        for each in self._fits:
            each.forget(share)

    def _fit_of(self, client: str) -> LeastSquares:
        fit = self._owners.get(client)
        if fit is not None:
            return fit
        if len(self._fits) == FITS:
            return self._fits[xxhash.xxh3_64_intdigest(client.encode()) % FITS]
        fit = LeastSquares(
            self._prior,
            self._trust,
            fade=self._fade,
            surprise_max=self._surprise_max,
            least=self._least,
            keep=self._fade,
        )
        self._fits.append(fit)
        self._owners[client] = fit
        return fit


def _median(costs: list[float], prior: float) -> float:
    """The median. Of two in the middle the one nearer to the prior: either may be wrong."""
    if len(costs) == 1:
        return costs[0]
    costs = sorted(costs)
    lower, upper = costs[(len(costs) - 1) // 2], costs[len(costs) // 2]
    return lower if _off(lower, prior) < _off(upper, prior) else upper


def _off(cost: float, prior: float) -> float:
    return abs(log(max(SHARE_MIN, cost / prior)))
