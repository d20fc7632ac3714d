"""The time for a dial, in which the process must have run.

If the process was stopped, or its loop was busy, the timer comes late, and perhaps before the loop
has read that the connection is there. Then the dial has a little longer, once.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from penstock.proxy.wire.deadline import READ_FIRST_S

# A timer that comes so late is not the backend's delay.
DIAL_LATE_S: Final = 0.1


@asynccontextmanager
async def dial_time(loop: asyncio.AbstractEventLoop, seconds: float) -> AsyncIterator[None]:
    """Raises TimeoutError if the block takes longer."""
    async with asyncio.timeout(None) as limit:
        timer = _Timer(loop, limit, seconds)
        try:
            yield
        finally:
            timer.clear()


class _Timer:
    """Ends the block of `limit`."""

    __slots__ = ("_due_s", "_handle", "_limit", "_loop", "_was_late")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, limit: asyncio.Timeout, seconds: float
    ) -> None:
        self._loop = loop
        self._limit = limit
        self._was_late = False
        self._begin(seconds)

    def clear(self) -> None:
        self._handle.cancel()

    def _begin(self, seconds: float) -> None:
        self._due_s = self._loop.time() + seconds
        self._handle = self._loop.call_at(self._due_s, self._fire)

    def _fire(self) -> None:
        now_s = self._loop.time()
        if now_s - self._due_s > DIAL_LATE_S and not self._was_late:
            self._was_late = True
            self._begin(READ_FIRST_S)
        else:
            self._limit.reschedule(now_s)
