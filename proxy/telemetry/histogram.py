"""Counts by size: plain integers, and their cumulative form for the exposition."""

from bisect import bisect_left
from collections.abc import Iterable
from operator import add
from typing import Final

LATENCY_S: Final[tuple[float, ...]] = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 600.0,
)  # fmt: skip
ITL_S: Final[tuple[float, ...]] = (
    0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5,
)  # fmt: skip
OVERHEAD_S: Final[tuple[float, ...]] = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1.0,
)  # fmt: skip
RATIO: Final[tuple[float, ...]] = (
    0.25, 0.5, 0.67, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0,
)  # fmt: skip
# Predicted over true waits.
WAIT_RATIO: Final[tuple[float, ...]] = (
    0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0,
)  # fmt: skip

_bisect_left: Final = bisect_left  # a constant is found faster than an imported name


class Histogram:
    """Counts per bucket; `bounds` are upper bounds, the last bucket is +Inf."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Add `count` samples of `value`."""
        self.counts[_bisect_left(self.bounds, value)] += count
        self.total += value * count

    def take(self, other: "Histogram") -> None:
        """Add all samples of one with the same bounds."""
        self.counts = list(map(add, self.counts, other.counts))
        self.total += other.total

    def buckets(self, bounds: Iterable[float] = ()) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, as the exposition wants them. `bounds`: only these."""
        told = frozenset(bounds)
        cumulative = 0
        rows = []
        for bound, count in zip(self.bounds, self.counts[:-1], strict=True):
            cumulative += count
            if not told or bound in told:
                rows.append((str(bound), float(cumulative)))
        rows.append(("+Inf", float(cumulative + self.counts[-1])))
        return rows
