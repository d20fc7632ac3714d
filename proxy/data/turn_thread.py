"""One thread for work that is too long for the loop.

Holders of jobs take turns, so that nobody waits behind all that another one has sent.
"""

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol


class Job(Protocol):
    """`wanted`: False if nobody wants it any more. It is not run then."""

    wanted: bool

    def run(self) -> None:
        """Do it, in the thread. It must not raise."""
        ...

    def done(self) -> None:
        """It was done, or passed over. Called on the loop."""
        ...


class TurnThread:
    """The thread, and the jobs that wait for it, by holder, in the order of their turns."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._busy = self._closing = False
        self._waiting: dict[str, deque[Job]] = {}

    def add(self, holder: str, job: Job) -> None:
        """Do it when it is its turn."""
        self._waiting.setdefault(holder, deque()).append(job)
        if not self._busy:
            self._next()

    def close(self) -> None:
        """Nothing more is added. What waits is still done, because requests wait for it."""
        self._closing = True
        if not self._busy:
            self._thread.shutdown(wait=False)

    def _next(self) -> None:
        self._busy = False
        while self._waiting and not self._busy:
            holder = next(iter(self._waiting))
            jobs = self._waiting.pop(holder)
            job = jobs.popleft()
            if jobs:
                self._waiting[holder] = jobs  # behind the others
            if job.wanted:
                self._busy = True
                self._thread.submit(self._run, job)
            else:
                job.done()
        if self._closing and not self._busy:
            self._thread.shutdown(wait=False)

    def _run(self, job: Job) -> None:
        try:
            job.run()
        finally:  # what panics raises no Exception
            self._loop.call_soon_threadsafe(self._done, job)

    def _done(self, job: Job) -> None:
        self._busy = False
        try:
            job.done()
        finally:
            if not self._busy:
                self._next()
