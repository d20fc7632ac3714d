"""Answers that their clients take too slowly, and who loses one when memory is short.

The answer that is taken slowest goes first, whoever asked for it. So a client that reads keeps its
answer, even if others of its tenant or address do not read theirs.
"""

import asyncio
from collections.abc import Callable
from heapq import nsmallest
from time import monotonic
from typing import Final

from penstock.proxy.data.client import Client
from penstock.proxy.wire.waiting import NO_LIMIT

# The most that are closed at once: a few milliseconds.
CLEARED: Final = 64
# A client counts as if it had taken so much in the second before, so that nobody begins at zero.
BEFORE_BYTES: Final = 65_536
BEFORE_S: Final = 1.0
# The least time between two looks at all answers. One look at 10,000 takes some milliseconds.
LOOK_S_PER_ANSWER: Final = 0.25 / 10_000


class Unread:
    """All answers of which more is unsent than a client may have (`sockets.HIGH_BYTES`).

    When they exceed `limit_bytes` together, some are given up.
    """

    __slots__ = ("_answers", "_clock", "_held_bytes", "_looked_s", "limit_bytes")

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self.limit_bytes = NO_LIMIT
        # The transport, how much was unsent at first, and since when.
        self._answers: dict[Client, tuple[asyncio.Transport, int, float]] = {}
        self._held_bytes = 0
        self._looked_s = float("-inf")

    def add(self, client: Client, transport: asyncio.Transport) -> None:
        """Count an answer that its client does not take as fast as it comes."""
        self.done(client)
        now_s = self._clock()
        unsent_bytes = transport.get_write_buffer_size()
        self._answers[client] = (transport, unsent_bytes, now_s)
        self._held_bytes += unsent_bytes
        over_bytes = self._held_bytes - self.limit_bytes
        rest_s = LOOK_S_PER_ANSWER * len(self._answers)
        if over_bytes > 0 and now_s - self._looked_s >= rest_s:
            self._looked_s = now_s
            self.clear(over_bytes)

    def done(self, client: Client) -> None:
        """This client has taken nearly all, or is gone."""
        answer = self._answers.pop(client, None)
        if answer is not None:
            self._held_bytes -= answer[1]

    def clear(self, over_bytes: int) -> None:
        """Free so much, but give up CLEARED answers at most."""
        now_s = self._clock()
        for client in nsmallest(CLEARED, self._answers, lambda each: self._rate(each, now_s)):
            if over_bytes <= 0:
                return
            over_bytes -= self._answers[client][1]
            self.done(client)
            client.give_way()

    def _rate(self, client: Client, now_s: float) -> float:
        """How fast the client takes its answer, in bytes per second."""
        transport, unsent_bytes, since_s = self._answers[client]
        taken_bytes = max(0, unsent_bytes - transport.get_write_buffer_size())
        return (taken_bytes + BEFORE_BYTES) / (now_s - since_s + BEFORE_S)
