"""Limits how many backends without requests are probed at the same time.

A thousand probes begun together would cause each other's timeouts. A place is held for `HOLD_S` at
most. A probe that waits longer costs us nothing, so a hanging backend blocks no other one.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Final, Protocol

HOLD_S: Final = 0.1


class Timer(Protocol):
    """A scheduled call, such as `asyncio.TimerHandle`."""

    def cancel(self) -> None: ...


Later = Callable[[float, Callable[[], None]], Timer]


class Places:
    """A number of places. Whoever finds none waits, in order. `later` is a loop's `call_later`."""

    def __init__(self, count: int, later: Later) -> None:
        self._free = count
        self._later = later
        self._waiting: deque[asyncio.Future[None]] = deque()

    def one(self) -> "Place":
        """A place for `async with places.one()`."""
        return Place(self, self._later)

    async def take(self) -> None:
        if self._free:
            self._free -= 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():  # it was given a place all the same
                self.give()
            raise

    def give(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free += 1


class Place:
    """One place. It is given back once: when it is left, or after HOLD_S."""

    __slots__ = ("_held", "_later", "_places", "_timer")

    def __init__(self, places: Places, later: Later) -> None:
        self._places = places
        self._later = later
        self._held = False
        self._timer: Timer | None = None

    async def __aenter__(self) -> None:
        await self._places.take()
        self._held = True
        self._timer = self._later(HOLD_S, self._give)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._give()

    def _give(self) -> None:
        if self._held:
            self._held = False
            self._places.give()
