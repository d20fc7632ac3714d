"""Steps of TLS handshakes with one peer, done in a thread, one after the other.

OpenSSL reads a backend's certificates before it verifies them. 190 certificates of 128 bytes, with
keys on a rare curve, take 200 ms. OpenSSL releases Python's lock meanwhile, so the event loop goes
on. A backend has one thread at a time, and which one depends on what its handshakes have cost
(`handshake_threads.py`). So has each party of clients where certificates are asked for
(`client_handshakes.py`); here it counts as a backend.
"""

import asyncio
import contextlib
import errno
from collections import deque
from collections.abc import Callable
from time import monotonic, thread_time
from typing import Final

from penstock.proxy.wire.handshake_threads import Rank, Work

# Returns False if it has ended without showing that the peer may be believed.
Step = Callable[[], bool | None]
Done = Callable[[OSError | None], None]
# Does the work beside the loop. Raises RuntimeError, or its future holds it.
Beside = Callable[[Work, Rank | None], asyncio.Future[float]]

# A backend gives the thread up after this time, so that others get it.
SLICE_S: Final = 0.01
# A step that takes more of the CPU than this is dear. A usual backend's takes 1 to 2 ms, on a busy
# machine up to 18 ms; the dearest known takes 200 ms.
DEAR_S: Final = 0.05
# How long a backend is called dear after such a step.
DEAR_FOR_S: Final = 60.0
# The queue compares what backends have sent for a handshake in units of this. Usual are 1 to 4 KB.
SIZE_BYTES: Final = 4_096


class Handshakes:
    """The steps that wait for a thread, whether it is at work, and what steps have cost."""

    __slots__ = (
        "_beside",
        "_busy",
        "_dear_until_s",
        "_loop",
        "_now",
        "_rested",
        "_verified",
        "_waiting",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        beside: Beside,
        now: Callable[[], float] = monotonic,
        rested: Callable[[], None] = lambda: None,
    ) -> None:
        """`rested` is called when all steps are done."""
        self._loop = loop
        self._beside = beside
        self._now = now
        self._rested = rested
        self._waiting: deque[tuple[Step, Done, Callable[[], bool], int]] = deque()
        self._busy = False
        self._verified = False  # a handshake has succeeded
        self._dear_until_s = 0.0

    def add(self, step: Step, done: Done, gone: Callable[[], bool], size_bytes: int = 0) -> None:
        """Call `step` in the thread, then `done` on the loop with the error, if there was one.

        Neither is called if `gone()` is true when the thread comes to this step. `size_bytes` is
        the size of what the backend has sent for this handshake.
        """
        self._waiting.append((step, done, gone, size_bytes))
        self._begin()

    @property
    def idle(self) -> bool:
        """Whether no step is under way or waits."""
        return not (self._busy or self._waiting)

    @property
    def memorable(self) -> bool:
        """Whether what steps have cost says anything of the next ones."""
        return self._verified or self._now() < self._dear_until_s

    def _begin(self) -> None:
        if self._busy or not self._waiting:
            return
        try:
            future = self._beside(self._work, self._rank())
        except RuntimeError:
            self._refuse()
        else:
            self._busy = True
            future.add_done_callback(self._end)

    def _rank(self) -> Rank | None:
        """The place of its next step. None if it was verified and is not dear."""
        dear = self._now() < self._dear_until_s
        if self._verified and not dear:
            return None
        return Rank(dear, 0 if dear else self._waiting[0][3] // SIZE_BYTES)

    def _work(self) -> float:
        """Do the steps, in the thread. The loop may add others meanwhile."""
        began_s = thread_time()
        until_s = monotonic() + SLICE_S
        waiting = self._waiting
        while waiting:
            step, done, gone, _ = waiting.popleft()
            if gone():
                continue
            error: OSError | None = None
            step_s = thread_time()
            try:
                if step() is not False:
                    self._verified = True
            except OSError as failure:
                # Its traceback would hold the connection until the collector runs.
                error = failure.with_traceback(None)
            if thread_time() - step_s > DEAR_S:
                self._dear_until_s = self._now() + DEAR_FOR_S
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(done, error)
            if monotonic() >= until_s:
                break
        return thread_time() - began_s

    def _end(self, future: asyncio.Future[float]) -> None:
        self._busy = False
        if not future.cancelled() and isinstance(future.exception(), RuntimeError):
            self._refuse()
        self._begin()
        if self.idle:
            self._rested()

    def _refuse(self) -> None:
        """There is no thread to be had. One that comes late finds nothing."""
        waiting, self._waiting = self._waiting, deque()
        for _, done, _, _ in waiting:
            done(OSError(errno.ENOMEM, "no thread for a handshake"))
