"""Counts good and bad requests over several windows at once, in bounded memory.

Counts are kept for cells of 5 s. A window is a ring of 60 slots, each a whole number of cells, with
a running sum. So a request costs one addition, and what leaves a window is subtracted when the time
moves on: each slot once. A window is up to one slot shorter than its name says.
"""

from array import array
from typing import Final

CELL_S: Final = 5
SLOTS: Final = 60


class Ring:
    """One window. `good` and `bad` are the sums of its slots."""

    __slots__ = ("_bad", "_good", "_slot", "bad", "good", "slot_s", "span_s")

    def __init__(self, span_s: float) -> None:
        """`span_s` is rounded up to 60 slots of whole cells."""
        self.slot_s = max(1, -int(-span_s // (SLOTS * CELL_S))) * CELL_S
        self.span_s = self.slot_s * SLOTS
        self._good = array("I", bytes(4 * SLOTS))
        self._bad = array("I", bytes(4 * SLOTS))
        self._slot = -1  # number of the present one since the clock's start
        self.good = self.bad = 0

    def advance(self, cell: int) -> None:
        """Drop what is older than the window. `cell`: number of the present cell."""
        slot = cell * CELL_S // self.slot_s
        for number in range(max(self._slot + 1, slot - SLOTS + 1), slot + 1):
            at = number % SLOTS
            self.good -= self._good[at]
            self.bad -= self._bad[at]
            self._good[at] = self._bad[at] = 0
        self._slot = max(self._slot, slot)

    def add(self, good: int, bad: int) -> None:
        """Count in the present slot."""
        at = self._slot % SLOTS
        self._good[at] += good
        self._bad[at] += bad
        self.good += good
        self.bad += bad


class Windows:
    """The same counts over several windows, and since the start (`good`, `bad`)."""

    __slots__ = ("_cell", "_new_bad", "_new_good", "bad", "good", "rings")

    def __init__(self, spans_s: tuple[float, ...], now_s: float) -> None:
        self.rings = [Ring(span_s) for span_s in spans_s]
        self.good = self.bad = 0
        self._new_good = self._new_bad = 0  # of the present cell, in no ring yet
        self._cell = int(now_s // CELL_S)
        for ring in self.rings:
            ring.advance(self._cell)

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
                ring.add(self._new_good, self._new_bad)
            if cell != self._cell:
                ring.advance(cell)
        self._new_good = self._new_bad = 0
        self._cell = cell
