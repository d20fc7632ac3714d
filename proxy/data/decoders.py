"""Decodes request bodies in one thread. After each body another client has its turn.

A decoded body counts as if it had just arrived.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from penstock.proxy.wire.content_coding import decode


class Job:
    """A body to decode, up to `most_bytes`. `then` is called on the loop with the decoded body or
    with the error."""

    __slots__ = ("body", "coding", "most_bytes", "then")

    def __init__(
        self, coding: bytes, body: bytes, most_bytes: int, then: Callable[[bytes | Exception], None]
    ) -> None:
        self.coding = coding
        self.body = body
        self.most_bytes = most_bytes
        self.then = then

    def end(self) -> None:
        """Nobody wants it any more."""
        self.body = b""


class Decoders:
    """The thread, and the bodies that wait for it, by holder, in the order of their turns."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads: Final = ThreadPoolExecutor(1, thread_name_prefix="decoding")
        self._busy = False
        self._waiting: dict[str, deque[Job]] = {}

    def add(self, holder: str, job: Job) -> None:
        self._waiting.setdefault(holder, deque()).append(job)
        if not self._busy:
            self._next()

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    def _next(self) -> None:
        self._busy = False
        while self._waiting and not self._busy:
            holder = next(iter(self._waiting))
            jobs = self._waiting.pop(holder)
            job = jobs.popleft()
            if jobs:
                self._waiting[holder] = jobs  # behind the others
            if job.body:
                self._busy = True
                self._threads.submit(self._run, job, job.body)

    def _run(self, job: Job, body: bytes) -> None:
        """Runs in the thread."""
        found: bytes | Exception
        try:
            found = decode(job.coding, body, job.most_bytes)
        except Exception as error:  # noqa: BLE001 - told on the loop
            found = error
        self._loop.call_soon_threadsafe(self._done, job, found)

    def _done(self, job: Job, found: bytes | Exception) -> None:
        if job.body:
            job.then(found)
        self._next()
