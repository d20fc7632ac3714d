"""Whether a figure that is sampled over time grows."""

from collections.abc import Sequence
from typing import NamedTuple


class Trend(NamedTuple):
    """A straight line through samples, by least squares."""

    first: float
    last: float
    per_s: float
    span_s: float

    @property
    def growth(self) -> float:
        """By how much the line rises over the samples."""
        return self.per_s * self.span_s


def trend(samples: Sequence[tuple[float, float]]) -> Trend:
    """The trend of (time, value) samples, at least two at different times."""
    times = [at_s for at_s, _ in samples]
    values = [value for _, value in samples]
    mean_s = sum(times) / len(times)
    mean = sum(values) / len(values)
    spread = sum((at_s - mean_s) ** 2 for at_s in times)
    per_s = sum((a - mean_s) * (v - mean) for a, v in samples) / spread
    return Trend(values[0], values[-1], per_s, times[-1] - times[0])
