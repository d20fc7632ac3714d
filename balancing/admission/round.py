"""In which turn of the loop each line is looked at."""

from collections.abc import Callable, Iterable
from typing import Final

# Streams wait while a wake looks. After so many looks it leaves the other lines to the next turn of
# the loop. Without a limit, a wake over 20 pools took 69 ms.
LOOKS_MAX: Final = 64


class Round:
    """Goes through the lines, in one wake or in several."""

    __slots__ = ("_changed", "_left", "_looks", "_several", "_soon")

    def __init__(self, soon: Callable[[], None]) -> None:
        """`soon`: asks for a wake."""
        self._soon = soon
        self._left: list[str] = []  # the next one is last
        self._looks = 0  # in this wake
        self._several = False  # whether this round takes several wakes
        self._changed = False  # since it began

    def changed(self) -> None:
        """What waits may have room now."""
        self._changed = True
        self._soon()

    def begin(self, lines: Iterable[str]) -> None:
        """A wake begins. If none is left of the last round, it looks at these."""
        self._looks = 0
        if not self._left:
            self._left = list(lines)[::-1]
            self._several = self._changed = False

    def looked(self) -> None:
        """It has looked at one request."""
        self._looks += 1

    def next(self) -> str | None:
        """The next line of this wake. None: there is none, or it has looked enough."""
        if not self._left:
            return None
        if self._looks >= LOOKS_MAX:
            self._several = True
            return None
        return self._left.pop()

    def end(self) -> None:
        """The wake ends. Another one follows if lines are left, or if something has changed since
        the first wake of a round of several: perhaps in a line already looked at."""
        if self._left or (self._several and self._changed):
            self._soon()
