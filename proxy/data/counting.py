"""Counts prompts exactly, in a thread of its own, in turns of their clients.

The tokenizers release the interpreter lock while they work, so streams go on.
A prompt that is too large, or whose client has too many waiting, keeps its estimate: a request must
not wait for its count longer than the count is worth.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from penstock.balancing.token_counter import TokenCounter, count_prompt
from penstock.balancing.tokens import Measure
from penstock.proxy.data.turn_thread import TurnThread

logger = logging.getLogger(__name__)

# The slower tokenizer handles 3 MB/s of text, and 0.7 MB/s of characters without any order. So one
# body takes a tenth of a second, a third at worst, and a client's next one waits for one of others.
BODY_BYTES_MAX: Final = 262_144
QUEUED_BYTES_MAX: Final = 1_048_576
# What a prompt counts in the queue on top of its size: a turn of the thread costs something too.
TURN_BYTES: Final = 4_096

Counted = Callable[[Measure | None], None]


class Count:
    """One prompt that is being counted."""

    def __init__(self, counting: "Counting", body: bytes, client: str, counted: Counted) -> None:
        self.wanted = True
        self.client = client
        self.size_bytes = len(body) + TURN_BYTES
        self._counting = counting
        self._body = body
        self._counted = counted
        self._result: Measure | None = None

    def cancel(self) -> None:
        """The result is not wanted any more. Call nothing back, drop a waiting prompt."""
        self.wanted = False

    def run(self) -> None:
        try:
            self._result = count_prompt(self._counting.counter, self._body)
        except Exception as error:  # noqa: BLE001 - its text may quote the prompt
            logger.error("prompt not counted error=%s", type(error).__name__)

    def done(self) -> None:
        self._counting.ended(self)
        if self.wanted:
            self._counted(self._result)


class Counting:
    """Counts the prompts of requests with `counter`, off the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, counter: TokenCounter) -> None:
        self.counter = counter
        self._thread = TurnThread(loop, "tokens")
        self._queued: dict[str, int] = {}  # bytes by client

    @property
    def queued_bytes(self) -> int:
        return sum(self._queued.values())

    def submit(self, body: bytes, client: str, counted: Counted) -> Count | None:
        """Count the prompt in `body`, then call `counted` on the loop, with None after a failure.

        Returns None when the prompt will not be counted.
        """
        count = Count(self, body, client, counted)
        own_bytes = self._queued.get(client, 0) + count.size_bytes
        # As much as is left to all others: one alone may fill half.
        if len(body) > BODY_BYTES_MAX or own_bytes > QUEUED_BYTES_MAX - self.queued_bytes:
            return None
        self._queued[client] = own_bytes
        self._thread.add(client, count)
        return count

    def ended(self, count: Count) -> None:
        """The count has ended, or was passed over. Runs on the loop."""
        self._queued[count.client] -= count.size_bytes
        if not self._queued[count.client]:
            del self._queued[count.client]

    def close(self) -> None:
        """Take no more prompts. Waiting ones are still counted, because requests wait for them."""
        self._thread.close()
