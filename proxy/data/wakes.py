"""The clock of admission: looks at what waits whenever room may have come free.

Many leases end in one turn of the loop. So a wake comes once, at the end of that turn.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from penstock.balancing.admission.controller import TICK_S, Admission
from penstock.balancing.admission.dispatch import Told
from penstock.proxy.wire.deadline import LATE_S
from penstock.proxy.wire.pulse import BEAT_S


class Wakes:
    """Wakes one `Admission`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, now: Callable[[], float], admission: Admission
    ) -> None:
        self._loop = loop
        self._now = now
        self._admission = admission
        self._soon = False
        self._due_s = 0.0  # when the timer comes
        self._untold: deque[Told] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def soon(self) -> None:
        """Room may have come free, or something has begun to wait."""
        if not self._soon:
            self._soon = True
            self._loop.call_soon(self._wake)

    def _begin_timer(self, after_s: float) -> None:
        self._due_s = self._now() + after_s
        self._timer = self._loop.call_later(after_s, self._tick)

    def _wake(self) -> None:
        self._soon = False
        if self._timer is not None and self._now() - self._due_s > LATE_S:
            return  # did the process sleep? The pulse tells that before the timer comes
        if self._timer is None and self._admission.waiting:
            self._begin_timer(TICK_S)
        outcomes: list[Told] = []
        try:
            self._admission.wake(self._now(), outcomes)
        finally:
            self._untold.extend(outcomes)
            self._tell()

    def _tell(self) -> None:
        try:
            while self._untold:
                request, outcome = self._untold.popleft()
                request.ready(outcome)
        finally:
            if self._untold:  # a fault at one request is not the end of others
                self.soon()

    def _tick(self) -> None:
        if self._now() - self._due_s > LATE_S:
            self._begin_timer(2.0 * BEAT_S)
        else:
            self._timer = None
            self._wake()
