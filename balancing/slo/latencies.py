"""Latencies of the last hour as a histogram, from which percentiles are read.

Bounds rise by a fourth, and all targets are bounds, with 70, 80 and 90 % of each. A percentile is
told as the upper bound of its bucket: never too low, at most 25 % too high. Whether it is above a
target is exact.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from math import ceil
from typing import Final

SLOT_S: Final = 300
SLOTS: Final = 12
STEP: Final = 1.25
_LEAST_S: Final = 0.001
_MOST_S: Final = 3_600.0
# So near to a target the state changes (`state`): there a percentile must be exact.
MARKS: Final = (0.7, 0.8, 0.9, 1.0)


def bounds_of(targets_s: Iterable[float]) -> tuple[float, ...]:
    """The upper bounds of the buckets, in seconds."""
    bounds = {target_s * mark for target_s in targets_s for mark in MARKS}
    bound_s = _LEAST_S
    while bound_s < _MOST_S:
        bounds.add(bound_s)
        bound_s *= STEP
    return tuple(sorted(bounds))


def bound_of(bounds_s: tuple[float, ...], counts: Iterable[int], share: float) -> float | None:
    """The bound of the bucket that `share` of the counts reach. None without counts."""
    counts = list(counts)
    total = sum(counts)
    if not total:
        return None
    # Rounding must not ask for one more than the share: 0.95 x 20 is 19.
    needed = max(1, ceil(share * total - 1e-9))
    for bound_s, count in zip(bounds_s, counts, strict=False):
        needed -= count
        if needed <= 0:
            return bound_s
    return float("inf")


class Latencies:
    """Counts by bucket, for the last hour and for its last 5 to 10 minutes."""

    __slots__ = ("_counts", "_slot", "bounds_s", "hour")

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self.bounds_s = bounds_s
        self.hour = array("I", bytes(4 * (len(bounds_s) + 1)))  # sums of the slots
        self._counts = [array("I", bytes(4 * (len(bounds_s) + 1))) for _ in range(SLOTS)]
        self._slot = -1

    def advance(self, now_s: float) -> None:
        """Drop what is older than an hour. Needed before a percentile is read."""
        slot = int(now_s // SLOT_S)
        for number in range(max(self._slot + 1, slot - SLOTS + 1), slot + 1):
            left = self._counts[number % SLOTS]
            for at, count in enumerate(left):
                if count:
                    self.hour[at] -= count
                    left[at] = 0
        self._slot = max(self._slot, slot)

    def add(self, time_s: float, now_s: float) -> None:
        """Count one request."""
        if now_s >= (self._slot + 1) * SLOT_S:
            self.advance(now_s)
        at = bisect_left(self.bounds_s, time_s)
        self.hour[at] += 1
        self._counts[self._slot % SLOTS][at] += 1

    def percentile_s(self, share: float) -> float | None:
        """So long or shorter took `share` of the last hour's requests. None without requests."""
        return bound_of(self.bounds_s, self.hour, share)

    def recent_s(self, share: float) -> float | None:
        """The same of this slot and the one before."""
        now, before = (self._counts[(self._slot - back) % SLOTS] for back in (0, 1))
        return bound_of(self.bounds_s, [a + b for a, b in zip(now, before, strict=True)], share)

    def above(self, time_s: float) -> int:
        """How many of the last hour took longer than a bound."""
        return sum(self.hour[bisect_left(self.bounds_s, time_s) + 1 :])
