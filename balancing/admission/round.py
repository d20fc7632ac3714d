"""In which turn of the loop each line is looked at."""

from collections.abc import Iterable
from typing import Final

# Streams wait while a wake looks. One that has looked at so many requests leaves the lines that are
# left to the next turn of the loop. With 20 pools a wake that knew no end took 69 ms.
LOOKS_MAX: Final = 64


class Round:
    """Goes through the lines, in one wake or in several."""

    __slots__ = ("_left", "_looks", "goes_on")

    def __init__(self) -> None:
        self._left: list[str] = []  # the next one is last
        self._looks = 0  # in this wake
        # Whether another wake must follow: for what is left, or for what has changed since the
        # first of several.
        self.goes_on = False

    def begin(self, lines: Iterable[str]) -> None:
        """A wake begins. If none is left of the last round, it looks at these."""
        self._looks = 0
        if not self._left:
            self._left = list(lines)[::-1]
            self.goes_on = False

    def looked(self) -> None:
        """It has looked at one request."""
        self._looks += 1

    def next(self) -> str | None:
        """The next line of this wake. None: there is none, or it has looked enough."""
        if not self._left:
            return None
        if self._looks >= LOOKS_MAX:
            self.goes_on = True
            return None
        return self._left.pop()
