"""Looks names up beside the loop, so that slow ones do not delay others.

The system's resolver blocks while a name server does not answer, and nothing can stop it. So each
lookup has a thread of its own, one at a time for each name. The number of threads is limited by
what is known of the name. Names that failed or took long start only while half of the threads are
free, new names while a quarter is free.
"""

import asyncio
import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

THREADS_MAX: Final = 64
# What is known of a name, best first, and the most threads in use when its lookup starts.
PROVEN, NEW, DOUBTFUL = range(3)
BUSY_MAX: Final = (THREADS_MAX, THREADS_MAX * 3 // 4, THREADS_MAX // 2)
# A slower lookup makes its name doubtful.
SLOW_S: Final = 1.0
# Beyond this many names the oldest are forgotten and count as new.
KNOWN_MAX: Final = 4_096

# Blocks. Raises OSError or UnicodeError.
Resolve = Callable[[str], Sequence[str]]
# Runs a call beside the loop. Raises RuntimeError.
Beside = Callable[[Callable[[], None]], None]


def resolve(name: str) -> Sequence[str]:
    """Ask the system's resolver."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for _, _, _, _, sockaddr in found]


def in_thread(call: Callable[[], None]) -> None:
    """Run a call in a thread for which the end of the process does not wait."""
    threading.Thread(target=call, name="lookup", daemon=True).start()


class Lookups:
    """Looks names up for one loop. It is a `proxy.wire.host.Lookup`."""

    def __init__(
        self,
        resolve: Resolve = resolve,
        beside: Beside = in_thread,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._resolve = resolve
        self._beside = beside
        self._now = now
        self._busy = 0
        self._under_way: dict[str, asyncio.Future[Sequence[str]]] = {}
        self._waiting: tuple[deque[str], ...] = (deque(), deque(), deque())
        self._known: dict[str, int] = {}

    async def __call__(self, name: str) -> Sequence[str]:
        """The addresses of a name, none if it is not found. Concurrent calls share one lookup."""
        found = self._under_way.get(name)
        if found is None:
            found = self._under_way[name] = asyncio.get_running_loop().create_future()
            self._waiting[self._known.get(name, NEW)].append(name)
            self._begin()
        return await asyncio.shield(found)

    def _begin(self) -> None:
        for waiting, busy_max in zip(self._waiting, BUSY_MAX, strict=True):
            while waiting and self._busy < busy_max:
                self._busy += 1
                self._look_up(waiting.popleft())

    def _look_up(self, name: str) -> None:
        loop = asyncio.get_running_loop()

        def run() -> None:
            found: Sequence[str] = ()
            begun_s = self._now()
            try:
                found = self._resolve(name)
            except (OSError, UnicodeError):  # no answer, or a name that DNS cannot have
                pass
            finally:
                slow = self._now() - begun_s > SLOW_S
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(self._ended, name, found, slow)

        try:
            self._beside(run)
        except RuntimeError:  # no thread can be started
            loop.call_soon(self._ended, name, (), False)

    def _ended(self, name: str, found: Sequence[str], slow: bool) -> None:
        self._busy -= 1
        self._known.pop(name, None)
        self._known[name] = PROVEN if found and not slow else DOUBTFUL
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._under_way.pop(name).set_result(found)
        self._begin()
