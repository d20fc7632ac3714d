"""Learns two costs from sums: y = a x1 + b x2. Old samples fade, and a prior pulls.

Errors are relative to the geometric mean of the expected and the seen value. So small samples teach
as much as large ones, and a sample too low by some factor as much as one too high by it. Relative
to the seen value, low samples would dominate. Relative to the expected, high ones would. (The
median error of estimates of tokens would be 7.7 to 8.2 % instead of 6.4 to 6.5 %.)
"""

from math import sqrt
from typing import Final

Pair = tuple[float, float]

# The least that is left of the prior's trust: nothing beside a sample, but more than rounding.
SHARE_MIN: Final = 1e-4
# The first few samples are never surprises: they may be 50 times the prior.
SAMPLES_MIN: Final = 8


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


def _square(x: float) -> float:
    return x * x  # a power of floats uses Python objects, compiled or not
