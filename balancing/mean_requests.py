"""How many requests a pool's backends have, in the mean of the last half minute.

The number at one moment is often none where few come that end soon, and a decision that lasts for
seconds needs to know how many will come.
"""

from collections.abc import Sequence
from math import exp
from typing import Final

from penstock.balancing.backend import Backend

TAU_S: Final = 30.0


class MeanRequests:
    """The mean of one pool, by looks when requests come: those see what there is in the mean."""

    __slots__ = ("_at_s", "_mean")

    def __init__(self) -> None:
        self._mean = 0.0
        self._at_s = 0.0

    def look(self, backends: Sequence[Backend], now_s: float) -> float:
        """The mean of one of these backends, with what it has now."""
        there = sum([each.requests_in_flight for each in backends]) / len(backends)
        new = 1.0 - exp(min(0.0, self._at_s - now_s) / TAU_S)
        self._mean += new * (there - self._mean)
        self._at_s = now_s
        return max(self._mean, there)
