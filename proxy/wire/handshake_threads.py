"""The threads for TLS handshakes with backends, shared by all backends.

A backend that was verified at little cost has its steps done at once, in one of several threads.
All others have one thread in common: those that are still unknown, those that were not accepted,
and those whose certificates take long. So many hostile backends delay no good one, and reloads and
other work of the process use other threads.

In the common thread unknown backends go first, those with short certificates before those with
long ones. Backends that have taken long get at most a quarter of the thread's time.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from heapq import heappop, heappush
from itertools import count
from time import monotonic
from typing import Final, NamedTuple

QUICK_THREADS: Final = 4
# After a work in the common thread, the next one of a dear backend waits this many times as long.
RESTS: Final = 3.0

# Does some steps. Returns how long that took, in seconds of the CPU.
Work = Callable[[], float]


class Rank(NamedTuple):
    """The place in the queue of the common thread. The least goes first."""

    dear: bool = False
    size: int = 0


class HandshakeThreads:
    """The threads, and the works that wait for the common one."""

    __slots__ = (
        "_busy",
        "_common",
        "_loop",
        "_numbers",
        "_quick",
        "_resting",
        "_until_s",
        "_works",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._quick: Executor = ThreadPoolExecutor(QUICK_THREADS, "handshakes")
        self._common: Executor = ThreadPoolExecutor(1, "dear-handshakes")
        self._works: list[tuple[Rank, int, Work, asyncio.Future[float]]] = []
        self._numbers = count()
        self._busy = False
        self._resting = False
        self._until_s = 0.0  # no step of a dear backend begins before

    def __call__(self, work: Work, rank: Rank | None) -> asyncio.Future[float]:
        """Do the work in a thread: at once if `rank` is None, otherwise in the common one.

        Raises RuntimeError, or the future holds it, if there is no thread to be had.
        """
        if rank is None:
            return self._loop.run_in_executor(self._quick, work)
        future: asyncio.Future[float] = self._loop.create_future()
        heappush(self._works, (rank, next(self._numbers), work, future))
        self._begin()
        return future

    def _begin(self) -> None:
        while self._works and not self._busy:
            rank, _, work, future = self._works[0]
            wait_s = self._until_s - monotonic()
            if rank.dear and wait_s > 0:
                if not self._resting:
                    self._resting = True
                    self._loop.call_later(wait_s, self._rested)
                return
            heappop(self._works)
            try:
                doing = self._loop.run_in_executor(self._common, work)
            except RuntimeError as error:
                future.set_exception(error)
            else:
                self._busy = True
                doing.add_done_callback(partial(self._end, future))

    def _end(self, future: asyncio.Future[float], done: asyncio.Future[float]) -> None:
        self._busy = False
        if done.cancelled():
            future.cancel()
        elif (error := done.exception()) is not None:
            future.set_exception(error)
        else:
            self._until_s = max(self._until_s, monotonic() + RESTS * done.result())
            future.set_result(done.result())
        self._begin()

    def _rested(self) -> None:
        self._resting = False
        self._begin()
