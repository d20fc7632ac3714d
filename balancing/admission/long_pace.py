"""When a long prompt may follow another one of its class, beside slow streams of higher classes.

A step that prefills a long prompt takes tens of times as long as one that only decodes, and all
streams wait for it. So beside slow streams the engine works on long prompts for a third of the
time. A prompt need not wait for what a longer one before it took. It may go once the streams have
had twice the time that it takes itself. Otherwise one of 60,000 tokens kept another tenant's of
9,000 waiting for 23 s.
"""

from collections.abc import Sequence
from math import inf
from typing import Final

# The engine works on long prompts for one part of so many of the time.
LONG_PACE: Final = 3.0


class LongPace:
    """Of one backend, for each class."""

    __slots__ = ("_ends_s", "_next_s")

    def __init__(self) -> None:
        self._ends_s: dict[int, float] = {}  # when the engine should have finished the last one
        self._next_s: dict[int, float] = {}  # when any other one may follow

    def sent(self, rank: int, prefill_s: float, now_s: float) -> None:
        """One is sent that takes so long."""
        self._ends_s[rank] = max(now_s, self._ends_s.get(rank, now_s)) + prefill_s
        next_s = now_s + LONG_PACE * prefill_s
        self._next_s[rank] = max(next_s, self._next_s.get(rank, next_s))

    def left(self, rank: int, began_s: float, now_s: float) -> None:
        """One has ended before its first token: it took no more than the time since it began."""
        next_s = now_s + (LONG_PACE - 1.0) * (now_s - began_s)
        self._next_s[rank] = min(next_s, self._next_s.get(rank, next_s))
        self._ends_s[rank] = min(now_s, self._ends_s.get(rank, now_s))

    def holds_back(self, rank: int, prefill_s: float, now_s: float) -> bool:
        """Whether one that takes so long would follow too soon."""
        if now_s >= self._next_s.get(rank, -inf):
            return False
        return now_s < self._ends_s[rank] + (LONG_PACE - 1.0) * prefill_s

    def reshape(self, ranks: Sequence[int]) -> None:
        """Take other classes. `ranks`: for each old one, the class that its requests have now."""
        self._ends_s = _moved(self._ends_s, ranks)
        self._next_s = _moved(self._next_s, ranks)

    def runs(self, now_s: float) -> bool:
        """Whether any class waits for anything."""
        for next_s in self._next_s.values():  # noqa: SIM110 - compiled: no generator
            if now_s < next_s:
                return True
        return False


def _moved(times_s: dict[int, float], ranks: Sequence[int]) -> dict[int, float]:
    """The latest of those that one class has now."""
    moved: dict[int, float] = {}
    for rank, time_s in times_s.items():
        moved[ranks[rank]] = max(time_s, moved.get(ranks[rank], -inf))
    return moved
