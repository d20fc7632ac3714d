"""Notices that the process itself did not run: silence that it slept through is nobody's fault.

Stopped by a signal, in a machine that was suspended, or held by a step of its own, the loop
finds every deadline passed and nothing read yet. A timer that comes often comes before nearly
all of those deadlines, late by as long as the loop did not run; whoever counts time then moves
it on by that. Where the monotonic clock stands still meanwhile, no time has passed for anybody.
"""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final

from proxy.deadline import LATE_S

BEAT_S: Final = 0.25


class Pulse:
    """Calls `slept` with the seconds that the loop did not run, as soon as it runs again."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        slept: Callable[[float], None],
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._loop = loop
        self._slept = slept
        self._now = now
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Beat from now on."""
        self._due_s = self._now() + BEAT_S
        self._timer = self._loop.call_later(BEAT_S, self._beat)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        late_s = self._now() - self._due_s
        self.start()
        if late_s > LATE_S:
            self._slept(late_s)
