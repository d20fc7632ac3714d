"""Decodes request bodies in one thread. After each body another client has its turn."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from penstock.proxy.wire.content_coding import decode

logger = logging.getLogger(__name__)

Decoded = Callable[[bytes | Exception], None]
Job = tuple[bytes, bytes, int, Decoded]


class Decoders:
    """The thread, and the bodies that wait for it, by holder, in the order of their turns."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads: Final = ThreadPoolExecutor(1, thread_name_prefix="decoding")
        self._busy = False
        self._waiting: dict[str, deque[Job]] = {}

    def add(self, holder: str, coding: bytes, body: bytes, most_bytes: int, then: Decoded) -> None:
        """Have a body decoded. `then` gets it on the loop, or why there is none."""
        self._waiting.setdefault(holder, deque()).append((coding, body, most_bytes, then))
        if not self._busy:
            self._next()

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    def _next(self) -> None:
        self._busy = bool(self._waiting)
        if not self._busy:
            return
        holder = next(iter(self._waiting))
        jobs = self._waiting.pop(holder)
        job = jobs.popleft()
        if jobs:
            self._waiting[holder] = jobs  # behind the others
        self._threads.submit(self._run, *job)

    def _run(self, coding: bytes, body: bytes, most_bytes: int, then: Decoded) -> None:
        """Runs in the thread."""
        found: bytes | Exception
        try:
            found = decode(coding, body, most_bytes)
        except Exception as error:  # noqa: BLE001 - told on the loop
            found = error
        self._loop.call_soon_threadsafe(self._done, then, found)

    def _done(self, then: Decoded, found: bytes | Exception) -> None:
        then(found)
        self._next()
