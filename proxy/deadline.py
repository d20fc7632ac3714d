"""A timer that costs nothing to move.

Timeouts here are moved by every request or chunk and almost never fire. Moving
one is a single attribute write; the loop's timer stays where it is, looks at
the attribute when it fires, and sleeps on if the time was moved. One that fires
far too late waits another moment: the loop did not run, and what came meanwhile
has yet to be read, and the time to be moved by who noticed (`pulse`).
"""

import asyncio
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Final

# No loop that works as it should is so late: refusing begins at a quarter of that. `pulse` goes by
# it too, so that what was due while the process did not run has been moved before it expires.
LATE_S: Final = 1.0
# So long who was late waits for what has come meanwhile.
READ_FIRST_S: Final = 0.5


def _nothing() -> None:
    """What a closed deadline calls."""


class Deadline:
    """Calls `expired` once `at_s` has passed on the clock `now`; `inf` means never."""

    __slots__ = ("_expired", "_fires_s", "_loop", "_now", "_timer", "at_s")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        expired: Callable[[], None],
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._loop = loop
        self._now = now
        self._expired = expired
        self._timer: asyncio.TimerHandle | None = None
        self._fires_s = inf
        self.at_s = inf

    def set(self, at_s: float) -> None:
        """Expire at `at_s`. Later than before is one attribute write."""
        self.at_s = at_s
        if at_s < self._fires_s:
            self._arm(at_s)

    def delay(self, time_s: float) -> None:
        """Expire so much later than set."""
        self.at_s += time_s

    def clear(self) -> None:
        """Expire never, until set again."""
        self.at_s = inf

    def close(self) -> None:
        """Give the loop's timer back; the deadline is not used again, nor is its owner held."""
        self.at_s = inf
        self._expired = _nothing
        self._fires_s = -inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._fires_s = at_s
        self._timer = self._loop.call_later(max(0.0, at_s - self._now()), self._fire)

    def _fire(self) -> None:
        late_s = self._now() - self._fires_s
        self._timer = None
        self._fires_s = inf
        if late_s > LATE_S and self.at_s < inf:
            self._arm(self._now() + READ_FIRST_S)
            return
        # The loop's clock has millisecond steps (uvloop): a timer may fire that much early.
        if self.at_s <= self._now() + 0.002:
            self.at_s = inf
            self._expired()
        elif self.at_s < inf:
            self._arm(self.at_s)
