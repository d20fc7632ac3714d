"""How many prompt tokens of each class get their first token in a second, while requests wait.

Only such times show what the fleet can do. Before there are any, the measured speeds stand in, for
as much as half a second of it.
"""

from math import exp
from typing import Final

# The time constant. Two or fifteen seconds did as well (bench/history/2026-11-admission.md, E).
TAU_S: Final = 5.0
PRIOR_S: Final = 0.5
# While requests wait it is looked at ten times a second. A longer time between two looks is a time
# in which the process did not run.
LOOK_MAX_S: Final = 0.5


class Pace:
    """The pace of one pool."""

    __slots__ = ("_last_s", "_seconds", "_tokens", "busy")

    def __init__(self, classes: int) -> None:
        self._tokens = [0.0] * classes
        self._seconds = 0.0  # in which requests waited
        self._last_s = 0.0
        self.busy = False  # requests wait

    def reshape(self, classes: int) -> None:
        """There are other classes now. What was counted was of the last one."""
        self._tokens = [0.0] * (classes - 1) + [sum(self._tokens)]

    def slept(self, time_s: float) -> None:
        """The process did not run for this long: nothing fades for that."""
        self._last_s += time_s

    def look(self, now_s: float) -> None:
        """Let what was counted fade. Call it before `busy` changes."""
        if self.busy:
            passed_s = min(LOOK_MAX_S, max(0.0, now_s - self._last_s))
            fade = exp(-passed_s / TAU_S)
            self._tokens = [tokens * fade for tokens in self._tokens]
            self._seconds = self._seconds * fade + TAU_S * (1.0 - fade)
        self._last_s = now_s

    def count(self, tokens: int, rank: int, now_s: float) -> None:
        """A prompt of so many tokens has its first token."""
        if self.busy:
            self.look(now_s)
            self._tokens[rank] += tokens

    def per_s(self, prior_per_s: float, above: int = 0) -> float:
        """Tokens a second. `above`: without those of so many highest classes."""
        tokens = sum(self._tokens[above:])
        return (tokens + PRIOR_S * prior_per_s) / (self._seconds + PRIOR_S)
