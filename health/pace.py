"""How often those of a fleet are asked that have no requests: the more there are, the more rarely.

Who has requests is asked as often as in a fleet of two. The others share what all of them together
may cost, a few percent of a core: a turn of probes and a scrape cost some 3 ms, measured.
Pure: time is an argument.
"""

from collections.abc import Sequence
from typing import Final

from balancing.backend import Backend, State

# Of those that are well; a turn and a scrape in this time.
IDLE_S_PER_BACKEND: Final = 0.1
# Of those that are in doubt, out or starting: 200 turns a second, however many there are.
OUT_S_PER_BACKEND: Final = 0.005
# The first turns, which are answered one by one where they come one by one.
FIRST_S_PER_BACKEND: Final = 0.002
# How long a count of those that are out stands: it looks at each backend of the fleet.
COUNTED_S: Final = 0.5
_WELL: Final = (State.READY, State.WARMING)


class Pace:
    """The pace of one fleet. All times are the most that a turn may be put off."""

    __slots__ = ("_backends", "_counted_at_s", "_out", "first_s", "idle_s")

    def __init__(self, backends: Sequence[Backend] = ()) -> None:
        self._backends = backends
        self._counted_at_s = -COUNTED_S
        self._out = 0
        self.idle_s = IDLE_S_PER_BACKEND * len(backends)
        self.first_s = FIRST_S_PER_BACKEND * len(backends)

    def out_s(self, now_s: float) -> float:
        """From one turn to the next of a backend that is not well."""
        if now_s - self._counted_at_s >= COUNTED_S:
            self._counted_at_s = now_s
            self._out = sum(backend.state not in _WELL for backend in self._backends)
        return OUT_S_PER_BACKEND * self._out
