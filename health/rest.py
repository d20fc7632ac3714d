"""The rest of a watch between two turns: until somebody calls, or a turn is due.

It uses a timer that sets itself again. A thousand tasks that woke up for each check would cost more
than their probes.
"""

import asyncio
from collections.abc import Callable


class Rest:
    """The rest of one watch. It checks `due` every `next_look_s`."""

    __slots__ = ("_called", "_due", "_next_look_s", "_resting", "_timer")

    def __init__(self, next_look_s: Callable[[], float], due: Callable[[], bool]) -> None:
        self._next_look_s = next_look_s
        self._due = due
        self._called = False
        self._resting: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def call(self) -> None:
        """Ask for a turn now: end this rest, or skip the next one."""
        self._called = True
        self._end()

    async def over(self) -> bool:
        """Rest. Returns True when somebody called, False when a turn was due."""
        if not self._called:
            self._resting = asyncio.get_running_loop().create_future()
            self._set()
            try:
                await self._resting
            finally:
                self._resting = None
                if self._timer is not None:
                    self._timer.cancel()
        called, self._called = self._called, False
        return called

    def _set(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._next_look_s(), self._look)

    def _look(self) -> None:
        if self._due():
            self._end()
        else:
            self._set()

    def _end(self) -> None:
        if self._resting is not None and not self._resting.done():
            self._resting.set_result(None)
