"""A watch's rest between two turns: until somebody calls, or a look finds a turn due.

A timer that sets itself again: a thousand resting tasks that woke for each look would cost more
than what they ask.
"""

import asyncio
from collections.abc import Callable


class Rest:
    """One for each watch: `due` is looked at every `next_look_s`."""

    __slots__ = ("_called", "_due", "_next_look_s", "_resting", "_timer")

    def __init__(self, next_look_s: Callable[[], float], due: Callable[[], bool]) -> None:
        self._next_look_s = next_look_s
        self._due = due
        self._called = False
        self._resting: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def call(self) -> None:
        """A turn is wanted now: end the rest, or the next one if nobody rests."""
        self._called = True
        self._end()

    async def over(self) -> bool:
        """Rest; True when somebody called, False when a turn was due."""
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
