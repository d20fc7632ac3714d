"""Counting tokens beside the loop: one thread, a bounded queue, an answer to the loop.

The tokenizers let go of the interpreter lock while they work, so streams go on;
a client that leaves takes its prompt out of the queue.
What is too large, or comes while the queue is full, keeps its estimate: a
request must not wait longer to be counted than the count is worth.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from balancing.token_counter import TokenCounter, count_prompt
from balancing.tokens import Measure

logger = logging.getLogger(__name__)

# The slower of the tokenizers does 3 MB/s: so much is below a tenth of a second, and what
# may wait or run at a time below a third.
BODY_BYTES_MAX: Final = 262_144
QUEUED_BYTES_MAX: Final = 1_048_576
# Even an empty prompt takes its turn of the thread: what that counts as.
TURN_BYTES: Final = 4_096

Counted = Callable[[Measure | None], None]


class Count:
    """One prompt on its way through the thread."""

    __slots__ = ("_counting", "counted", "running", "size_bytes")

    def __init__(self, counting: "Counting", size_bytes: int, counted: Counted) -> None:
        self._counting = counting
        self.size_bytes = size_bytes
        self.counted: Counted | None = counted
        self.running: Future[None] | None = None

    def cancel(self) -> None:
        """Nobody wants it any more: nothing is called back, and what waits is not counted."""
        self.counted = None
        if self.running is not None and self.running.cancel():
            self._counting.ended(self, None)


class Counting:
    """Counts the prompts of requests with `counter`, off the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, counter: TokenCounter) -> None:
        self._loop = loop
        self._counter = counter
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="tokens")
        self.queued_bytes = 0

    def submit(self, body: bytes, counted: Counted) -> Count | None:
        """Count the prompt in `body` and call back on the loop, with None if that failed.

        None when it will not be counted.
        """
        size_bytes = len(body) + TURN_BYTES
        if len(body) > BODY_BYTES_MAX or self.queued_bytes + size_bytes > QUEUED_BYTES_MAX:
            return None
        self.queued_bytes += size_bytes
        count = Count(self, size_bytes, counted)
        count.running = self._threads.submit(self._run, body, count)
        return count

    def ended(self, count: Count, result: Measure | None) -> None:
        """On the loop: its place is free."""
        self.queued_bytes -= count.size_bytes
        assert self.queued_bytes >= 0
        if count.counted is not None:
            count.counted(result)

    def close(self) -> None:
        """Take no more; what waits is still counted, since a request waits with it."""
        self._threads.shutdown(wait=False)

    def _run(self, body: bytes, count: Count) -> None:
        result = None
        try:
            result = count_prompt(self._counter, body)
        except Exception as error:  # noqa: BLE001 - its text may hold the prompt's
            logger.error("prompt not counted error=%s", type(error).__name__)
        finally:  # a tokenizer that panics raises no Exception
            self._loop.call_soon_threadsafe(self.ended, count, result)
