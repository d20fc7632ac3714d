"""How often backends without requests are probed: the larger the fleet, the less often.

A backend with requests is probed as often as in a fleet of two. All others together may cost a few
percent of a core: a turn of probes and a scrape cost some 3 ms (measured).
Pure: time is an argument.
"""

from collections.abc import Sequence
from typing import Final

from penstock.balancing.backend import Backend, State

# The longest pause between turns of a healthy backend, per backend of the fleet.
IDLE_S_PER_BACKEND: Final = 0.1
# The pause of a suspect, ejected or starting backend, per such backend: 200 turns a second.
OUT_S_PER_BACKEND: Final = 0.005
# The longest wait for the first turn, per backend of the fleet.
FIRST_S_PER_BACKEND: Final = 0.002
# How long the count of backends that are out is kept. Counting looks at every backend.
COUNTED_S: Final = 0.5
_WELL: Final = (State.READY, State.WARMING)


class Pace:
    """The pace of one fleet. All times are the longest that a turn may be put off."""

    __slots__ = ("_backends", "_counted_at_s", "_out", "first_s", "idle_s")

    def __init__(self, backends: Sequence[Backend] = ()) -> None:
        self._backends = backends
        self._counted_at_s = -COUNTED_S
        self._out = 0
        self.idle_s = IDLE_S_PER_BACKEND * len(backends)
        self.first_s = FIRST_S_PER_BACKEND * len(backends)

    def out_s(self, now_s: float) -> float:
        """The time between two turns of a backend that is not healthy."""
        if now_s - self._counted_at_s >= COUNTED_S:
            self._counted_at_s = now_s
            self._out = sum(backend.state not in _WELL for backend in self._backends)
        return OUT_S_PER_BACKEND * self._out
