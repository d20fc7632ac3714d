"""Counts over windows of time, in bounded memory: good and bad requests, and latencies.

A window is a ring of slots with running sums. What leaves it is subtracted when the time moves on,
each slot once. So a window is up to one slot shorter than its name says.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from math import ceil
from typing import Final

# Good and bad requests: slots of whole cells, so that a request costs one addition.
CELL_S: Final = 5
SLOTS: Final = 60
# Latencies.
LATENCY_SLOT_S: Final = 300
LATENCY_SLOTS: Final = 12
# Bounds of their buckets rise by a fourth, and all targets are bounds, with 70, 80 and 90 % of
# each: there the state changes (`next_state`), so a percentile must be exact.
STEP: Final = 1.25
_LEAST_S: Final = 0.001
_MOST_S: Final = 3_600.0
MARKS: Final = (0.7, 0.8, 0.9, 1.0)


class Ring:
    """One window of several counts. `sums`: of all its slots, by number of the count."""

    def __init__(self, slot_s: int, slots: int, counts: int) -> None:
        self.slot_s = slot_s
        self.sums = [0] * counts
        self._slots = slots
        self._counts = array("I", bytes(4 * slots * counts))
        self._slot = -1  # number of the present one since the clock's start

    def advance(self, now_s: float) -> None:
        """Drop what is older than the window."""
        slot, width = int(now_s // self.slot_s), len(self.sums)
        for number in range(max(self._slot + 1, slot - self._slots + 1), slot + 1):
            begin = number % self._slots * width
            for at, count in enumerate(self._counts[begin : begin + width]):
                if count:
                    self.sums[at] -= count
                    self._counts[begin + at] = 0
        self._slot = max(self._slot, slot)

    def add(self, at: int, count: int) -> None:
        """Count in the present slot."""
        self._counts[self._slot % self._slots * len(self.sums) + at] += count
        self.sums[at] += count

    def lately(self) -> list[int]:
        """The counts of the present slot and the one before."""
        width = len(self.sums)
        begins = [(self._slot - back) % self._slots * width for back in (0, 1)]
        now, before = [self._counts[begin : begin + width] for begin in begins]
        return [a + b for a, b in zip(now, before, strict=True)]


class Windows:
    """Good and bad requests over several windows, and since the start (`good`, `bad`)."""

    def __init__(self, spans_s: tuple[float, ...], now_s: float) -> None:
        """Spans are rounded up to 60 slots of whole cells."""
        slots_s = [max(1, -int(-span_s // (SLOTS * CELL_S))) * CELL_S for span_s in spans_s]
        self.rings = [Ring(slot_s, SLOTS, 2) for slot_s in slots_s]
        self.good = self.bad = 0
        self._new_good = self._new_bad = 0  # of the present cell, in no ring yet
        self._cell = int(now_s // CELL_S)
        for ring in self.rings:
            ring.advance(now_s)

    def add(self, *, good: bool, now_s: float) -> bool:
        """Count one request. True if the time has moved on to a new cell."""
        moved = now_s >= (self._cell + 1) * CELL_S
        if moved:
            self.advance(now_s)
        if good:
            self._new_good += 1
            self.good += 1
        else:
            self._new_bad += 1
            self.bad += 1
        return moved

    def advance(self, now_s: float) -> None:
        """Bring all windows up to date. Needed before they are read."""
        cell = max(self._cell, int(now_s // CELL_S))
        for ring in self.rings:
            if self._new_good or self._new_bad:
                ring.add(0, self._new_good)
                ring.add(1, self._new_bad)
            if cell != self._cell:
                ring.advance(cell * CELL_S)
        self._new_good = self._new_bad = 0
        self._cell = cell


class Latencies:
    """Latencies of the last hour as a histogram, from which percentiles are read.

    A percentile is told as the upper bound of its bucket: never too low, at most 25 % too high.
    Whether it is above a target is exact.
    """

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self.bounds_s = bounds_s
        self._ring = Ring(LATENCY_SLOT_S, LATENCY_SLOTS, len(bounds_s) + 1)

    def advance(self, now_s: float) -> None:
        """Drop what is older than an hour. Needed before a percentile is read."""
        self._ring.advance(now_s)

    def add(self, time_s: float, now_s: float) -> None:
        """Count one request."""
        self._ring.advance(now_s)
        self._ring.add(bisect_left(self.bounds_s, time_s), 1)

    def percentile_s(self, share: float) -> float | None:
        """So long or shorter took `share` of the last hour's requests. None without requests."""
        return bound_of(self.bounds_s, self._ring.sums, share)

    def recent_s(self, share: float) -> float | None:
        """The same of the last 5 to 10 minutes."""
        return bound_of(self.bounds_s, self._ring.lately(), share)

    def above(self, time_s: float) -> int:
        """How many of the last hour took longer than a bound."""
        return sum(self._ring.sums[bisect_left(self.bounds_s, time_s) + 1 :])


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
