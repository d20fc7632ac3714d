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
from penstock.proxy.wire.sockets import unacknowledged_bytes
from penstock.proxy.wire.waiting import NO_LIMIT

# The most that are closed at once: a few milliseconds.
CLEARED: Final = 64
# Of so many, the kernel is asked how much their clients have taken.
ASKED: Final = 512
# A client counts as if it had taken so much in the second before, so that nobody begins at zero.
BEFORE_BYTES: Final = 65_536
BEFORE_S: Final = 1.0
# The least time between two looks at all answers. One look at 10,000 takes some milliseconds.
LOOK_S_PER_ANSWER: Final = 0.25 / 10_000


class Unread:
    """All answers of which more is unsent than a client may have (`sockets.HIGH_BYTES`).

    When they exceed `limit_bytes` together, some are given up.
    """

    __slots__ = ("_answers", "_clock", "_held_bytes", "_looked_s", "_unacknowledged", "limit_bytes")

    def __init__(
        self,
        clock: Callable[[], float] = monotonic,
        unacknowledged: Callable[[asyncio.Transport], int] = unacknowledged_bytes,
    ) -> None:
        """`unacknowledged`: bytes that the kernel keeps for a transport's peer."""
        self._clock = clock
        self._unacknowledged = unacknowledged
        self.limit_bytes = NO_LIMIT
        # The transport, how much was unsent and unacknowledged at first, since when, and how much
        # the answer held then.
        self._answers: dict[Client, tuple[asyncio.Transport, int, int, float, int]] = {}
        self._held_bytes = 0
        self._looked_s = float("-inf")

    def add(self, client: Client, transport: asyncio.Transport, behind_bytes: int = 0) -> None:
        """Count an answer that its client does not take as fast as it comes.

        `behind_bytes`: read from the backend and not yet written to the transport.
        """
        self.done(client)
        now_s = self._clock()
        unsent_bytes = transport.get_write_buffer_size()
        held_bytes = unsent_bytes + behind_bytes
        kernel_bytes = self._unacknowledged(transport)
        self._answers[client] = (transport, unsent_bytes, kernel_bytes, now_s, held_bytes)
        self._held_bytes += held_bytes
        over_bytes = self._held_bytes - self.limit_bytes
        rest_s = LOOK_S_PER_ANSWER * len(self._answers)
        if over_bytes > 0 and now_s - self._looked_s >= rest_s:
            self._looked_s = now_s
            self.clear(over_bytes)

    def done(self, client: Client) -> None:
        """This client has taken nearly all, or is gone."""
        answer = self._answers.pop(client, None)
        if answer is not None:
            self._held_bytes -= answer[4]

    def clear(self, over_bytes: int) -> None:
        """Free so much, but give up CLEARED answers at most."""
        now_s = self._clock()
        slow = nsmallest(ASKED, self._answers, lambda each: self._sent_rate(each, now_s))
        for client in nsmallest(CLEARED, slow, lambda each: self._taken_rate(each, now_s)):
            if over_bytes <= 0:
                return
            over_bytes -= self._answers[client][4]
            self.done(client)
            client.give_way()

    def _sent_rate(self, client: Client, now_s: float) -> float:
        """How fast the kernel takes its answer, in bytes per second."""
        transport, unsent_bytes, _, since_s, _ = self._answers[client]
        return _rate(unsent_bytes - transport.get_write_buffer_size(), now_s - since_s)

    def _taken_rate(self, client: Client, now_s: float) -> float:
        """How fast the client takes it. The kernel takes more at once, and then nothing."""
        transport, unsent_bytes, kernel_bytes, since_s, _ = self._answers[client]
        left_bytes = transport.get_write_buffer_size() + self._unacknowledged(transport)
        return _rate(unsent_bytes + kernel_bytes - left_bytes, now_s - since_s)


def _rate(taken_bytes: int, time_s: float) -> float:
    return (max(0, taken_bytes) + BEFORE_BYTES) / (time_s + BEFORE_S)
