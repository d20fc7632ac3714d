"""A clock that stands still while the process does, and a timer that can be moved at no cost.

Each request or chunk moves timeouts, and they almost never fire. Moving one is a single
attribute write. The loop's timer stays where it is. When it fires it looks at the
attribute and sleeps on if the time was moved. A timer that fires far too late waits a
moment more: the loop did not run, so bytes that came meanwhile must be read first, and
whoever noticed the sleep (`pulse`) sets back the clock.
"""

import asyncio
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Final

# A healthy loop is never this late: overload refuses requests at a quarter of it. `pulse` uses the
# same limit, so deadlines that passed while the process did not run are moved before they expire.
LATE_S: Final = 1.0
# How long a late timer waits, so that bytes that came meanwhile are read.
READ_FIRST_S: Final = 0.5


class Clock:
    """Monotonic time without the time in which the process was stopped or suspended.

    Nobody has waited in that time, and no deadline comes nearer. `Pulse` notices it.
    """

    def __init__(self, time: Callable[[], float] = monotonic) -> None:
        self._time = time
        self._slept_s = 0.0

    def now(self) -> float:
        return self._time() - self._slept_s

    def slept(self, time_s: float) -> None:
        """The process did not run for this long."""
        self._slept_s += time_s


def nothing() -> None:
    """The callback of a closed deadline."""


class Deadline:
    """Calls `expired` once the clock `now` has passed `at_s`. `inf` means never."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        expired: Callable[[], None],
        now: Callable[[], float] = monotonic,
        late_s: float = LATE_S,
    ) -> None:
        """`late_s`: what fires later waits a moment more."""
        self._loop = loop
        self._late_s = late_s
        self._now = now
        self.expired = expired  # may be replaced at any time
        self._timer: asyncio.TimerHandle | None = None
        self._fires_s = inf
        self.at_s = inf

    def set(self, at_s: float) -> None:
        """Expire at `at_s`. Moving it later is one attribute write."""
        self.at_s = at_s
        if at_s < self._fires_s:
            self._arm(at_s)

    def clear(self) -> None:
        """Do not expire until set again."""
        self.at_s = inf

    def close(self) -> None:
        """Cancel the loop's timer. The deadline is not used again and holds its owner no more."""
        self.at_s = inf
        self.expired = nothing
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
        if late_s > self._late_s and self.at_s < inf:
            self._arm(self._now() + READ_FIRST_S)
            return
        # uvloop's clock has steps of a millisecond, so a timer may fire that much early.
        if self.at_s <= self._now() + 0.002:
            self.at_s = inf
            self.expired()
        elif self.at_s < inf:
            self._arm(self.at_s)
