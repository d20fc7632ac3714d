"""The clock of admission: looks at what waits whenever room may have come free.

Many leases end in one turn of the loop. So a wake comes once, at the end of that turn.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from penstock.balancing.admission.admission import TICK_S, Admission, Outcome


class Wakes:
    """Wakes one `Admission`."""

    __slots__ = ("_admission", "_loop", "_now", "_soon", "_timer", "_untold")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, now: Callable[[], float], admission: Admission
    ) -> None:
        self._loop = loop
        self._now = now
        self._admission = admission
        self._soon = False
        self._untold: deque[Outcome] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def soon(self) -> None:
        """Room may have come free, or something has begun to wait."""
        if not self._soon:
            self._soon = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._soon = False
        self._untold.extend(self._admission.wake(self._now()))
        if self._timer is None and self._admission.waiting:
            self._timer = self._loop.call_later(TICK_S, self._tick)
        try:
            while self._untold:
                ticket, outcome = self._untold.popleft()
                ticket.ready(outcome)
        finally:
            if self._untold:  # a fault at one request is not the end of others
                self.soon()

    def _tick(self) -> None:
        self._timer = None
        self._wake()
