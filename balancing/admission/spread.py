"""How far answers' lengths spread around their mean, and what that says of an answer's rest.

An answer that is long already is likely to become longer than the mean. The last whole answers
tell: each as a multiple of the mean of that moment. So a mean that changes changes no spread.
"""

from bisect import bisect_right
from collections import deque
from typing import Final

# How many answers tell, from how many on, and after how many they are counted anew.
KEPT: Final = 64
KEPT_MIN: Final = 30
EVERY: Final = 16
# With fewer, or after the longest, this share of the mean is always still to come.
UNKNOWN: Final = 0.25
# An answer longer than this many times the mean counts as that long.
TIMES_MAX: Final = 8.0


class Spread:
    """The last answers of one flow, or of all."""

    __slots__ = ("_last", "_ordered", "_sums", "_until", "longest")

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=KEPT)
        self._ordered: list[float] = []
        self._sums: list[float] = []  # of the longest 0, 1, 2... answers
        self._until = KEPT_MIN  # answers until they are counted
        self.longest = 1.0  # the most that is ever left, in means

    @property
    def known(self) -> bool:
        return bool(self._ordered)

    @property
    def most_times(self) -> float:
        """The longest of the last answers, in means. 0.0 with too few of them."""
        return self._ordered[-1] if self._ordered else 0.0

    def observe(self, times: float) -> None:
        """An answer is whole, and was so many times the mean."""
        self._last.append(min(TIMES_MAX, times))
        self._until -= 1
        if not self._until:
            self._until = EVERY
            self._count()

    def left(self, times: float) -> float:
        """The mean rest of answers that are longer than `times` the mean, in means."""
        ordered = self._ordered
        if not ordered:
            return max(1.0 - times, UNKNOWN)
        longer = len(ordered) - bisect_right(ordered, times)
        return self._sums[longer] / longer - times if longer else UNKNOWN

    def _count(self) -> None:
        """Add up the longest answers, and find the largest rest."""
        ordered = self._ordered = sorted(self._last)
        total, sums = 0.0, [0.0]
        for times in reversed(ordered):
            total += times
            sums.append(total)
        self._sums = sums
        longest = max(UNKNOWN, total / len(ordered))
        for place, times in enumerate(ordered[:-1]):  # just after each answer's end
            longer = len(ordered) - place - 1
            longest = max(longest, sums[longer] / longer - times)
        self.longest = longest
