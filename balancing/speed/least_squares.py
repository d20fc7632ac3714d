"""Learns two costs from sums: y = a x1 + b x2. Old samples fade, and a prior pulls.

Errors are relative to the geometric mean of the expected and the seen value. So small samples teach
as much as large ones, and a sample too low by some factor as much as one too high by it. Relative
to the seen value, low samples would dominate. Relative to the expected, high ones would. (The
median error of estimates of tokens would be 7.7 to 8.2 % instead of 6.4 to 6.5 %.)
"""

from collections.abc import Callable
from math import inf, log, sqrt
from typing import Final

import xxhash

Pair = tuple[float, float]

# The least that is left of the prior's trust: nothing beside a sample, but more than rounding.
SHARE_MIN: Final = 1e-4
# The first few samples are never surprises: they may be 50 times the prior.
SAMPLES_MIN: Final = 8

# So many clients have a fit of their own. All others share these, by their hash.
FITS: Final = 7
# A fit votes for so long after its last sample. Then the next new client may have its place.
VOTE_S: Final = 300.0
# Fits of fewer samples vote only where they are most of all.
VOTER_SAMPLES_MIN: Final = 4
# Nor does a fit vote on `a` if that is a smaller part of its samples' costs (the mean square of the
# part): a fit of short prompts says how long a step takes, and next to nothing of a token.
PART_MIN: Final = 0.05
# For comparing costs with their prior: below this share of it they are alike.
OFF_MIN: Final = 1e-3


class LeastSquares:
    """Two costs, neither below zero.

    `prior` is never quite forgotten. So a measure that is always zero does no harm, and two
    measures that are always alike can be separated. `trust` is its weight: a sample in which x1 (or
    x2) alone makes y = 1 has the weight x1 squared (x2 squared). Each sample leaves the share
    `keep` of the trust and `fade` of the earlier samples. A sample that is off by more than the
    factor `surprise_max` counts as off by that factor. `least` is the smallest possible y. `weight`
    is the weight of all samples, where a new one has 1.
    """

    def __init__(
        self,
        prior: Pair,
        trust: Pair,
        *,
        fade: float,
        surprise_max: float,
        least: float,
        keep: float = 1.0,
    ) -> None:
        self._prior = prior
        self._trust = trust
        self._fade = fade
        self._keep = keep
        self._share = 1.0  # what is left of the trust
        self._surprise_max = sqrt(surprise_max)
        self._surprise_min = 1.0 / self._surprise_max
        self._least = least
        self._aa = self._ab = self._bb = self._ay = self._by = 0.0
        self.a, self.b = prior
        self.samples = 0
        self.weight = 0.0
        self.taught_s = -inf  # when its last sample came, for a `FairFit`

    @property
    def mean_b(self) -> float:
        """The mean second measure of samples whose first measure is one."""
        return self._ab / self._aa if self._aa else 0.0

    @property
    def part_a(self) -> float:
        """The part of the first cost in the samples' costs: the mean square, 0 to 1."""
        return min(1.0, _square(self.a) * self._aa / self.weight) if self.weight else 0.0

    def expect(self, measure: Pair) -> float:
        """The cost of a thing with this measure."""
        return self.a * measure[0] + self.b * measure[1]

    def observe(self, measure: Pair, cost: float, rest: float = 0.0) -> float:
        """A thing with this measure was seen to cost `cost`.

        `rest` of the cost should come from elsewhere. The larger `rest`, the less it teaches.
        Returns how much it taught, 0 to 1.
        """
        part = max(self._least, self.expect(measure))
        expected = part + rest
        surprise = sqrt(max(cost, self._least) / expected)
        if self.samples >= SAMPLES_MIN:
            surprise = min(max(surprise, self._surprise_min), self._surprise_max)
        mean = expected * surprise
        a, b, fade, keep, told = measure[0] / mean, measure[1] / mean, self._fade, self._keep, 1.0
        y = surprise
        if rest:
            y -= rest / mean
            told = _square(part / expected)
            fade, keep = 1.0 - (1.0 - fade) * told, 1.0 - (1.0 - keep) * told
        self._aa = self._aa * fade + a * a
        self._ab = self._ab * fade + a * b
        self._bb = self._bb * fade + b * b
        self._ay = self._ay * fade + a * y
        self._by = self._by * fade + b * y
        self._share = max(SHARE_MIN, self._share * keep)
        self.samples += 1
        self.weight = self.weight * fade + told
        self._solve()
        return told

    def forget(self, share: float) -> None:
        """Take the share off the weight of all samples so far, so that new ones count more."""
        keep = 1.0 - share
        self._aa *= keep
        self._ab *= keep
        self._bb *= keep
        self._ay *= keep
        self._by *= keep
        self.weight *= keep

    def _solve(self) -> None:
        prior_a, prior_b = self._prior
        trust_a, trust_b = self._trust
        # A sample of something more expensive than the prior weighs less, and so must the prior.
        trust_a *= self._share * (_square(min(1.0, prior_a / self.a)) if self.a else 1.0)
        trust_b *= self._share * (_square(min(1.0, prior_b / self.b)) if self.b else 1.0)
        aa, bb, ab = self._aa + trust_a, self._bb + trust_b, self._ab
        ay, by = self._ay + trust_a * prior_a, self._by + trust_b * prior_b
        scale = aa * bb - ab * ab
        self.a = max(0.0, (bb * ay - ab * by) / scale)
        self.b = max(0.0, (aa * by - ab * ay) / scale)


class FairFit:
    """Two costs, `a` and `b`, that no single client decides: each has a fit, and the median counts.

    One client can make all its samples wrong. (Its prompts are in the engine's cache, and we cannot
    see that, because JSON can spell one text in many ways.) However many samples it gives, it has
    one vote: the median of means of Nemirovsky and Yudin (1983). `make`: a fit without samples.
    `weight`: of all samples, of which each fades the earlier ones by `fade`.
    """

    def __init__(self, prior: Pair, fade: float, make: Callable[[], LeastSquares]) -> None:
        self._prior = prior
        self._fade = fade
        self._make = make
        self._fits: dict[str, LeastSquares] = {}  # by the client that came first
        self.a, self.b = prior
        self.samples = 0
        self.weight = 0.0

    def observe(
        self, measure: Pair, cost: float, rest: float = 0.0, client: str = "", now_s: float = 0.0
    ) -> None:
        """A client's thing with this measure was seen to cost `cost`, as in `LeastSquares`."""
        fit = self._fit_of(client, now_s)
        told = fit.observe(measure, cost, rest)
        fit.taught_s = now_s
        self.samples += 1
        self.weight = self.weight * (1.0 - (1.0 - self._fade) * told) + told
        if len(self._fits) == 1:
            self.a, self.b = fit.a, fit.b
            return
        fits = [each for each in self._fits.values() if now_s - each.taught_s <= VOTE_S]
        sure = [each for each in fits if each.samples >= VOTER_SAMPLES_MIN]
        fits = sure if 2 * len(sure) >= len(fits) else fits
        self.b = _median([each.b for each in fits], self._prior[1])
        fits = [each for each in fits if each.part_a >= PART_MIN] or fits
        self.a = _median([each.a for each in fits], self._prior[0])

    @property
    def mean_b(self) -> float:
        """The mean second measure of samples whose first measure is one."""
        weight = sum([each.weight for each in self._fits.values()])
        total = sum([each.weight * each.mean_b for each in self._fits.values()])
        return total / weight if weight else 0.0

    def forget(self, share: float) -> None:
        """As in `LeastSquares`. A fit votes again from its next sample on."""
        self.weight *= 1.0 - share
        for each in self._fits.values():
            each.forget(share)
            each.taught_s = -inf

    def _fit_of(self, client: str, now_s: float) -> LeastSquares:
        fit = self._fits.get(client)
        if fit is not None:
            return fit
        if len(self._fits) == FITS:
            silent = min(self._fits, key=lambda each: self._fits[each].taught_s)
            if now_s - self._fits[silent].taught_s <= VOTE_S:
                number = xxhash.xxh3_64_intdigest(client.encode()) % FITS
                return list(self._fits.values())[number]
            del self._fits[silent]
        fit = self._fits[client] = self._make()
        return fit


def _median(costs: list[float], prior: float) -> float:
    """The median. Of two in the middle the one nearer to the prior: either may be wrong."""
    costs = sorted(costs)
    lower, upper = costs[(len(costs) - 1) // 2], costs[len(costs) // 2]
    return lower if _off(lower, prior) < _off(upper, prior) else upper


def _off(cost: float, prior: float) -> float:
    return abs(log(max(OFF_MIN, cost / prior)))


def _square(x: float) -> float:
    return x * x  # a power of floats uses Python objects, compiled or not
