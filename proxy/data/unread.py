"""Answers that their clients take too slowly, and who loses one when memory is short.

The answer that is taken slowest goes first, whoever asked for it. So a client that reads keeps its
answer, even if others of its tenant or address do not read theirs. A holder that has lost an answer
because nobody read it gets little credit for new ones. This does not count between its own answers:
clients that read are not to blame for others at their address.
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
# A new client counts as if it had taken so much in the second before: nobody begins at zero.
NEW_BYTES: Final = 65_536
NEW_S: Final = 1.0
# Others count as if they had gone on as before for so long. A client's TCP acknowledges in steps of
# half its receive buffer. Between two steps a slow reader looks as if it read nothing, for seconds.
PACE_S: Final = 8.0
# The pace, in bytes per second, that keeps an answer. What a client read faster than this does not
# save it once it stops.
PACE_MAX: Final = 65_536.0
# What is taken so early is taken by the client's kernel, also if nobody reads. Among the answers of
# one holder it counts for nothing: whoever asks again and again always has new ones.
AT_ONCE_S: Final = 0.03
# Sooner than this nothing can be said of a client. One that takes this share of PACE_MAX does read.
SEEN_S: Final = 0.25
READ_SHARE: Final = 0.75
# Whoever did not take an answer, so that it was given up, has little credit for new ones for so
# long: a part of its pace for a second, and none without a pace. Otherwise somebody who asks again
# and again would always look better than a slow reader.
SHUNNED_S: Final = 60.0
SHUNNED_SHARE: Final = 0.25
SHUNNED_MAX: Final = 4_096
# The least time between two looks at all answers. One look at 10,000 takes some milliseconds.
LOOK_S_PER_ANSWER: Final = 0.25 / 10_000


class _Answer:
    """What an answer held when its client began to take it too slowly, and what it holds now."""

    __slots__ = (
        "_at_once_bytes",
        "_behind_bytes",
        "_credit_bytes",
        "_credit_s",
        "_fair_bytes",
        "_fair_s",
        "_kernel_bytes",
        "_since_s",
        "_unsent_bytes",
        "counted_bytes",
        "transport",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        kernel_bytes: int,
        behind_bytes: int,
        pace: float,
        now_s: float,
        *,
        shunned: bool,
    ) -> None:
        """`pace`: how fast its client took answers before. 0: it is not known."""
        self.transport = transport
        self._unsent_bytes = transport.get_write_buffer_size()
        self._kernel_bytes = kernel_bytes
        self._behind_bytes = behind_bytes
        self.counted_bytes = self._unsent_bytes + behind_bytes
        self._since_s = now_s
        self._at_once_bytes = 0
        self._fair_bytes, self._fair_s = float(NEW_BYTES), NEW_S
        if pace:
            self._fair_bytes, self._fair_s = PACE_S * pace, PACE_S
        self._credit_bytes, self._credit_s = self._fair_bytes, self._fair_s
        if shunned:
            self._credit_bytes, self._credit_s = SHUNNED_SHARE * pace, NEW_S

    @property
    def held_bytes(self) -> int:
        """What it holds now. `counted_bytes` is what it held when that was asked last."""
        return self.transport.get_write_buffer_size() + self._behind_bytes

    def sent_pace(self, now_s: float) -> float:
        """How fast the kernel takes it. It takes more at once, and then nothing."""
        return self.pace(self.taken_bytes(self._kernel_bytes), now_s)

    def taken_bytes(self, kernel_bytes: int) -> int:
        """What the client has taken since. `kernel_bytes`: what the kernel holds now."""
        left_bytes = self.transport.get_write_buffer_size() + kernel_bytes
        return max(0, self._unsent_bytes + self._kernel_bytes - left_bytes)

    def look(self, kernel_bytes: int, now_s: float) -> int:
        """The same, and note it if that was the client's kernel."""
        taken_bytes = self.taken_bytes(kernel_bytes)
        if now_s - self._since_s < AT_ONCE_S:
            self._at_once_bytes = taken_bytes
        return taken_bytes

    def pace(self, taken_bytes: int, now_s: float) -> float:
        """How fast the client takes it, beside those of other holders."""
        return (taken_bytes + self._credit_bytes) / (now_s - self._since_s + self._credit_s)

    def fair_pace(self, taken_bytes: int, now_s: float) -> float:
        """How fast the client takes it, beside others of its holder, shunned or not."""
        taken_bytes -= self._at_once_bytes
        return (taken_bytes + self._fair_bytes) / (now_s - self._since_s + self._fair_s)

    def is_unread(self, taken_bytes: int, now_s: float) -> bool:
        """Whether its client had time to read and did so too slowly, or not at all."""
        age_s = now_s - self._since_s
        return age_s >= SEEN_S and taken_bytes - self._at_once_bytes < READ_SHARE * PACE_MAX * age_s


class Unread:
    """All answers of which more is unsent than a client may have (`sockets.HIGH_BYTES`).

    When they exceed `limit_bytes` together, some are given up.
    """

    __slots__ = (
        "_answers",
        "_clock",
        "_held_bytes",
        "_kernel",
        "_looked_s",
        "_shunned",
        "limit_bytes",
    )

    def __init__(
        self,
        clock: Callable[[], float] = monotonic,
        kernel: Callable[[asyncio.Transport], int] = unacknowledged_bytes,
    ) -> None:
        """`kernel`: what the kernel holds of what a transport has sent, in bytes."""
        self._clock = clock
        self._kernel = kernel
        self.limit_bytes = NO_LIMIT
        self._answers: dict[Client, _Answer] = {}
        self._held_bytes = 0
        self._looked_s = float("-inf")
        self._shunned: dict[str, float] = {}  # until when, by holder, oldest first

    def add(self, client: Client, transport: asyncio.Transport, behind_bytes: int = 0) -> None:
        """Count an answer that its client does not take as fast as it comes.

        `behind_bytes`: read from the backend and not yet written to the transport.
        """
        self.done(client)
        now_s = self._clock()
        shunned = self._shunned.get(client.holder, 0.0) > now_s
        kernel_bytes = self._kernel(transport)
        answer = _Answer(transport, kernel_bytes, behind_bytes, client.pace, now_s, shunned=shunned)
        self._answers[client] = answer
        self._held_bytes += answer.counted_bytes
        rest_s = LOOK_S_PER_ANSWER * len(self._answers)
        if self._held_bytes > self.limit_bytes and now_s - self._looked_s >= rest_s:
            self._looked_s = now_s
            self._count()
            self.clear(self._held_bytes - self.limit_bytes)

    def done(self, client: Client) -> None:
        """This client has taken nearly all, or is gone."""
        answer = self._answers.pop(client, None)
        if answer is not None:
            self._held_bytes -= answer.counted_bytes
            taken_bytes = answer.taken_bytes(self._kernel(answer.transport))
            client.pace = min(PACE_MAX, answer.pace(taken_bytes, self._clock()))

    def _count(self) -> None:
        """Count again: clients have taken some of what their answers held."""
        self._held_bytes = 0
        for answer in self._answers.values():
            answer.counted_bytes = answer.held_bytes
            self._held_bytes += answer.counted_bytes

    def clear(self, over_bytes: int) -> None:
        """Free so much, but give up CLEARED answers at most."""
        if over_bytes <= 0:
            return
        now_s, answers, kernel = self._clock(), self._answers, self._kernel
        slow = nsmallest(ASKED, answers, lambda each: answers[each].sent_pace(now_s))
        taken = {each: answers[each].look(kernel(answers[each].transport), now_s) for each in slow}
        # The slowest answers decide which holders lose some. `fair_pace` decides which answers go.
        slowest = nsmallest(CLEARED, taken, lambda each: answers[each].pace(taken[each], now_s))
        of_holder: dict[str, list[Client]] = {}
        for client in sorted(taken, key=lambda each: answers[each].fair_pace(taken[each], now_s)):
            of_holder.setdefault(client.holder, []).append(client)
        for holder in [each.holder for each in slowest]:
            if over_bytes <= 0:
                return
            client = of_holder[holder].pop(0)
            over_bytes -= answers[client].held_bytes
            if answers[client].is_unread(taken[client], now_s):
                self._shun(client.holder, now_s)
            self.done(client)
            client.give_way()

    def _shun(self, holder: str, now_s: float) -> None:
        shunned = self._shunned
        shunned.pop(holder, None)
        shunned[holder] = now_s + SHUNNED_S
        if len(shunned) > SHUNNED_MAX:
            del shunned[next(iter(shunned))]
