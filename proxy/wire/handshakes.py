"""Does steps of TLS handshakes in threads: all with backends, and those with clients that are asked
for a certificate.

OpenSSL reads the certificates of anybody before it verifies them. 190 certificates of 128 bytes,
with keys on a rare curve, take 200 ms. It releases Python's lock meanwhile, so the event loop goes
on. A peer is a backend, or all clients of one address. Its steps are done one after the other.

A peer that was verified at little cost has its steps done at once, in one of several threads. All
others have one thread in common: those that are still unknown, those that were not accepted, and
those whose certificates take long. So many hostile peers delay no good one, and reloads and other
work of the process use other threads. In the common thread unknown peers go first, those that have
sent less before those that have sent more. Dear ones get at most a quarter of its time.
"""

import asyncio
import contextlib
import errno
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from heapq import heappop, heappush
from itertools import count
from time import monotonic, thread_time
from typing import Final

from penstock.balancing.fair_table import put_last

# Returns False if it has ended without showing that the peer may be believed. Raises OSError.
Step = Callable[[], bool]
Done = Callable[[OSError | None], None]

QUICK_THREADS: Final = 4
# A peer gives the thread up after this time, so that others get it.
SLICE_S: Final = 0.01
# A step that takes more of the CPU than this is dear. A usual peer's takes 1 to 2 ms, on a busy
# machine up to 18 ms; the dearest known takes 200 ms.
DEAR_S: Final = 0.05
# How long a peer is called dear after such a step.
DEAR_FOR_S: Final = 60.0
# After work for a dear peer, the next dear one waits this many times as long.
RESTS: Final = 3.0
# What peers have sent for a handshake is compared in units of this. Usual are 1 to 4 KB.
SIZE_BYTES: Final = 4_096
# How many addresses of clients are known. A forgotten one counts as unknown again.
PARTIES_MAX: Final = 4_096


class HandshakeThreads:
    """The threads, and the peers that wait for the common one."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, now: Callable[[], float] = monotonic
    ) -> None:
        self.loop = loop
        self.now = now
        self._quick: Executor = ThreadPoolExecutor(QUICK_THREADS, "handshakes")
        self._common: Executor = ThreadPoolExecutor(1, "dear-handshakes")
        # Dear ones last, then by size, then by number.
        self._waiting: list[tuple[bool, int, int, Handshakes]] = []
        self._numbers = count()
        self._busy = False  # the common thread is at work
        self._dear_from_s = 0.0  # no dear peer has it before
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, peer: "Handshakes") -> None:
        """Have steps of this peer done. It is told by `ended`."""
        if peer.quick:
            self._start(self._quick, peer)
            return
        heappush(self._waiting, (peer.dear, peer.size, next(self._numbers), peer))
        self._begin_common()

    def _begin_common(self) -> None:
        self._timer = None
        while self._waiting and not self._busy:
            dear, _, _, peer = self._waiting[0]
            wait_s = self._dear_from_s - self.now()
            if dear and wait_s > 0:
                if self._timer is None:
                    self._timer = self.loop.call_later(wait_s, self._begin_common)
                return
            heappop(self._waiting)
            self._busy = self._start(self._common, peer)

    def _start(self, threads: Executor, peer: "Handshakes") -> bool:
        """Whether a thread has begun."""
        try:
            work = self.loop.run_in_executor(threads, peer.work)
        except RuntimeError:  # there is none to be had
            peer.ended(None)
            return False

        def ended(done: asyncio.Future[float]) -> None:
            failed = done.cancelled() or done.exception() is not None
            took_s = None if failed else done.result()
            if threads is self._common:
                self._busy = False
                if took_s is not None:
                    self._dear_from_s = max(self._dear_from_s, self.now() + RESTS * took_s)
            peer.ended(took_s)
            if threads is self._common:
                self._begin_common()

        work.add_done_callback(ended)
        return True


class Handshakes:
    """The handshakes with one peer: the steps that wait for a thread, and what steps have cost."""

    __slots__ = ("_busy", "_dear_until_s", "_threads", "_verified", "_waiting")

    def __init__(self, threads: HandshakeThreads) -> None:
        self._threads = threads
        self._waiting: deque[tuple[Step, Done, Callable[[], bool], int]] = deque()
        self._busy = False
        self._verified = False  # a handshake has succeeded
        self._dear_until_s = 0.0

    def add(self, step: Step, done: Done, gone: Callable[[], bool], size_bytes: int = 0) -> None:
        """Call `step` in a thread, then `done` on the loop with the error, if there was one.

        Neither is called if `gone()` is true when the thread comes to this step. `size_bytes` is
        the size of what the peer has sent for this handshake.
        """
        self._waiting.append((step, done, gone, size_bytes))
        if not self._busy:
            self._busy = True
            self._threads.begin(self)

    @property
    def dear(self) -> bool:
        """Whether its last steps have taken long."""
        return self._threads.now() < self._dear_until_s

    @property
    def quick(self) -> bool:
        """Whether it may be believed to take no thread for long."""
        return self._verified and not self.dear

    @property
    def size(self) -> int:
        """How much the peer has sent for the next step, in units."""
        return self._waiting[0][3] // SIZE_BYTES

    def work(self) -> float:
        """Do steps, in the thread. Returns their time of the CPU. The loop may add others."""
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
                self._verified = step() or self._verified
            except OSError as failure:
                # Its traceback would hold the connection until the collector runs.
                error = failure.with_traceback(None)
            if thread_time() - step_s > DEAR_S:
                self._dear_until_s = self._threads.now() + DEAR_FOR_S
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._threads.loop.call_soon_threadsafe(done, error)
            if monotonic() >= until_s:
                break
        return thread_time() - began_s

    def ended(self, took_s: float | None) -> None:
        """The thread has ended its work. None: there was no thread; one that comes late finds
        nothing."""
        self._busy = False
        if took_s is None:
            waiting, self._waiting = self._waiting, deque()
            for _, done, _, _ in waiting:
                done(OSError(errno.ENOMEM, "no thread for a handshake"))
        if self._waiting and not self._busy:
            self._busy = True
            self._threads.begin(self)


class ClientHandshakes:
    """The handshakes of clients, by the party of their address. Those of backends have threads of
    their own."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, threads: HandshakeThreads | None = None
    ) -> None:
        self._threads = threads or HandshakeThreads(loop)
        self._parties: dict[str, Handshakes] = {}  # who came last is last

    def of(self, party: str) -> Handshakes:
        """Those of one party. Without a connection it is remembered, too: what its steps have cost
        says something of the next ones."""
        found = self._parties.get(party) or Handshakes(self._threads)
        put_last(self._parties, party, found, PARTIES_MAX)
        return found
