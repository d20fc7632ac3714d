"""How often backends are probed, and how many at once.

A backend with requests is probed as often as in a fleet of two. All others together may cost a few
percent of a core: a turn of probes and a scrape cost some 3 ms (measured). So the larger the fleet,
the less often each of them is probed. A thousand probes begun together would cause each other's
timeouts: so only some are under way at once.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol

from penstock.balancing.backend import Backend, State

# The longest pause between turns of a healthy backend, per backend of the fleet.
IDLE_S_PER_BACKEND: Final = 0.1
# The pause of a suspect, ejected or starting backend, per such backend: 200 turns a second.
OUT_S_PER_BACKEND: Final = 0.005
# The longest wait for the first turn, per backend of the fleet.
FIRST_S_PER_BACKEND: Final = 0.002
# How long the count of backends that are out is kept. Counting looks at every backend.
COUNTED_S: Final = 0.5
# The longest time for which a probe keeps its place. One that waits longer costs us nothing, so a
# backend that hangs blocks no other one.
HOLD_S: Final = 0.1
_WELL: Final = (State.READY, State.WARMING)


class Pace:
    """The pace of one fleet. All times are the longest that a turn may be put off."""

    __slots__ = ("_backends", "_counted_at_s", "_out", "first_s", "idle_s")

    def __init__(self, backends: Sequence[Backend] = ()) -> None:
        self._backends = backends
        self._counted_at_s = -COUNTED_S
        self._out = 0
        self.idle_s = IDLE_S_PER_BACKEND * len(backends)
        self.first_s = FIRST_S_PER_BACKEND * len(backends)

    def out_s(self, now_s: float) -> float:
        """The time between two turns of a backend that is not healthy."""
        if now_s - self._counted_at_s >= COUNTED_S:
            self._counted_at_s = now_s
            self._out = sum(backend.state not in _WELL for backend in self._backends)
        return OUT_S_PER_BACKEND * self._out


class Timer(Protocol):
    """A scheduled call, such as `asyncio.TimerHandle`."""

    def cancel(self) -> None: ...


Later = Callable[[float, Callable[[], None]], Timer]


class Places:
    """So many probes at once. Whoever finds no place waits, in order. `later`: a loop's
    `call_later`."""

    def __init__(self, count: int, later: Later) -> None:
        self._free = asyncio.Semaphore(count)
        self._later = later

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """One place. It is given back once: when it is left, or after HOLD_S."""
        await self._free.acquire()
        held = True

        def give() -> None:
            nonlocal held
            if held:
                held = False
                self._free.release()

        timer = self._later(HOLD_S, give)
        try:
            yield
        finally:
            timer.cancel()
            give()


class Rest:
    """The rest of a watch between two turns: until somebody calls, or `due` is true.

    That is checked every `next_look_s` by a timer that sets itself again. A thousand tasks that
    woke up for each check would cost more than their probes.
    """

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
