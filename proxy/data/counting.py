"""Counts prompts exactly, in one thread with a bounded queue.

The tokenizers release the interpreter lock while they work, so streams go on. A client
that leaves takes its prompt out of the queue.
A prompt that is too large, or that comes while the queue is full, keeps its estimate: a
request must not wait for its count longer than the count is worth.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from penstock.balancing.token_counter import TokenCounter, count_prompt
from penstock.balancing.tokens import Measure

logger = logging.getLogger(__name__)

# The slower tokenizer handles 3 MB/s. So one body takes less than a tenth of a second, and all
# that wait or run at the same time less than a third.
BODY_BYTES_MAX: Final = 262_144
QUEUED_BYTES_MAX: Final = 1_048_576
# What a prompt counts in the queue on top of its size: a turn of the thread costs something too.
TURN_BYTES: Final = 4_096

Counted = Callable[[Measure | None], None]


class Count:
    """One prompt that is being counted."""

    __slots__ = ("_counting", "counted", "running", "size_bytes")

    def __init__(self, counting: "Counting", size_bytes: int, counted: Counted) -> None:
        self._counting = counting
        self.size_bytes = size_bytes
        self.counted: Counted | None = counted
        self.running: Future[None] | None = None

    def cancel(self) -> None:
        """The result is not wanted any more. Call nothing back, drop a waiting prompt."""
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
        """Count the prompt in `body`, then call `counted` on the loop, with None after a failure.

        Returns None when the prompt will not be counted.
        """
        size_bytes = len(body) + TURN_BYTES
        if len(body) > BODY_BYTES_MAX or self.queued_bytes + size_bytes > QUEUED_BYTES_MAX:
            return None
        self.queued_bytes += size_bytes
        count = Count(self, size_bytes, counted)
        count.running = self._threads.submit(self._run, body, count)
        return count

    def ended(self, count: Count, result: Measure | None) -> None:
        """The count has ended. Runs on the loop."""
        self.queued_bytes -= count.size_bytes
        assert self.queued_bytes >= 0
        if count.counted is not None:
            count.counted(result)

    def close(self) -> None:
        """Take no more prompts. Waiting ones are still counted, because requests wait for them."""
        self._threads.shutdown(wait=False)

    def _run(self, body: bytes, count: Count) -> None:
        result = None
        try:
            result = count_prompt(self._counter, body)
        except Exception as error:  # noqa: BLE001 - its text may quote the prompt
            logger.error("prompt not counted error=%s", type(error).__name__)
        finally:  # a tokenizer that panics raises no Exception
            self._loop.call_soon_threadsafe(self.ended, count, result)
