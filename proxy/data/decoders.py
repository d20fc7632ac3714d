"""Takes the content coding off request bodies, in one thread. Clients take turns.

Servers of models read no coded bodies, and penstock has to read what it counts. gzip is always
taken; zstd where Python has it (3.14) or its backport is installed (the extra `zstd`). A decoded
body counts as if it had just arrived.
"""

import asyncio
import zlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

try:
    from compression import zstd  # type: ignore[import-not-found,unused-ignore]
except ImportError:
    try:
        from backports import zstd
    except ImportError:
        zstd = None

# How many times its coded size a body larger than SMALL_BYTES may decode to.
RATIO_MAX: Final = 100
SMALL_BYTES: Final = 1_048_576
# RFC 9659: in HTTP, zstd looks back 8 MiB at most. A decoder holds as much.
_WINDOW_LOG_MAX: Final = 23
_GZIP: Final = 31  # zlib's number for gzip with a window of any size
BOM: Final = b"\xef\xbb\xbf"
CODINGS: Final = (b"gzip", b"zstd") if zstd is not None else (b"gzip",)


class Undecodable(Exception):
    """The body is not one whole piece of what its coding says."""


def decode(coding: bytes, body: bytes, most_bytes: int) -> bytes:
    """The body without its coding (empty: none) and its byte order mark. It is longer than
    `most_bytes` if that is not enough. Raises Undecodable."""
    if not coding:
        return body.removeprefix(BOM)
    try:
        if coding == b"gzip":
            stream = zlib.decompressobj(_GZIP)
        else:
            limits = {zstd.DecompressionParameter.window_log_max: _WINDOW_LOG_MAX}
            stream = zstd.ZstdDecompressor(options=limits)
        decoded: bytes = stream.decompress(body, most_bytes + 1 + len(BOM))
    except Exception as error:  # zlib.error, ZstdError
        raise Undecodable from error
    if len(decoded) <= most_bytes and (not stream.eof or stream.unused_data):
        raise Undecodable
    return decoded.removeprefix(BOM)


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
