"""Divides each turn of the event loop between parties: tenants, addresses and backends.

Work that comes with a read is done at once while this turn has time `left_s` for it. The rest waits
for later turns, as does work of many steps: in each turn waiting steps run for `turn_s`. The party
that has had least is next, so a party with much work, in large or in small pieces, delays its own.
Streams and probes beside it wait for milliseconds.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sized
from functools import partial
from heapq import heappop, heappush
from time import monotonic
from typing import Final

logger = logging.getLogger(__name__)

Step = Callable[[], bool]

# How long the steps of one scheduler run in a turn, and how long work at once may take.
TURN_S: Final = 0.001
AT_ONCE_S: Final = 0.005
# While at least this is left, a turn needs no call of the loop to renew it.
UNWATCHED_S: Final = AT_ONCE_S / 2
# Other parties that wait do not mind less than this.
SHORT_S: Final = 0.0005
# A step counts once more for each of these times. There is a limit: the process may have slept.
STEP_S: Final = 0.00025
STEP_COUNT_MAX: Final = 400
# The kernel takes a millisecond for 16 MiB that are given back to it.
FREED_BYTES: Final = 1_048_576


class Scheduler:
    """Decides what is done at once, and whose turn is next."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        turn_s: float = TURN_S,
        now: Callable[[], float] = monotonic,
    ) -> None:
        """`turn_s`: how long steps go on in one turn. With 0.0 there is one step in a turn."""
        self.loop = loop
        self._turn_s = turn_s
        self._now = now
        self.left_s = AT_ONCE_S  # for work at once; it may be overdrawn
        # The steps of each party in order. Empty for a party that is ahead and has none left.
        self._waiting: dict[str, deque[Step]] = {}
        self._count = 0  # of all waiting steps
        # A heap of the parties: (place in the order, number of the entry, party).
        self._queue: list[tuple[int, int, str]] = []
        self._place = 0  # the place of the last turn
        self._entries = 0  # made so far in the queue
        self._called = False  # whether the loop will call `_turn`

    def __len__(self) -> int:
        return self._count

    def knows(self, party: str) -> bool:
        """Whether steps of this party wait, or it has just had more than others."""
        return party in self._waiting

    def spend(self, cost_s: float) -> None:
        """Count work that is done now. In a step it counts as a part of the step."""
        self.left_s -= cost_s
        if self.left_s < UNWATCHED_S and not self._called:
            self._call()

    def take(self, party: str, cost_s: float) -> bool:
        """Spend this time if the work may be done at once. False: it has to wait for its turn."""
        if cost_s > self.left_s:
            return False
        if cost_s > SHORT_S and len(self._waiting) > (party in self._waiting):
            return False
        self.spend(cost_s)
        return True

    def add(self, party: str, step: Step) -> None:
        """Call `step` in later turns for as long as it returns that there is more to do."""
        if not self._called:
            self._call()
        self._count += 1
        steps = self._waiting.get(party)
        if steps is None:
            self._waiting[party] = steps = deque()
            self._enter(party, self._place + 1)  # so new parties cannot delay others for ever
        steps.append(step)

    def free(self, party: str, held: Sized) -> None:
        """Hold this until its turn, if it is large. Everybody else should forget it now.

        A hundred large bodies may end together. To free them all at once would stop the loop.
        """
        if len(held) >= FREED_BYTES:
            self.add(party, partial(_forget, [held]))

    def _call(self) -> None:
        self._called = True
        self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._called = False
        self.left_s = AT_ONCE_S
        if not self._count:
            return
        turn_s, at_s = self._turn_s, self._now()
        while self._count:
            self._place, _, party = heappop(self._queue)
            steps = self._waiting[party]
            if not steps:
                del self._waiting[party]
                continue
            before_s = self.left_s
            self._step(steps)
            began_s, at_s = at_s, self._now()
            cost_s = max(at_s - began_s, before_s - self.left_s)
            self._enter(party, self._place + 1 + min(int(cost_s / STEP_S), STEP_COUNT_MAX))
            turn_s -= cost_s
            if turn_s <= 0.0:
                break
        if not self._count:  # no party is ahead of another
            self._waiting.clear()
            self._queue.clear()
        elif not self._called:
            self._call()

    def _enter(self, party: str, place: int) -> None:
        self._entries += 1
        heappush(self._queue, (place, self._entries, party))

    def _step(self, steps: deque[Step]) -> None:
        step = steps[0]
        try:
            more = step()  # may add other steps
        except Exception:  # this work is lost, other work goes on
            logger.exception("work in turns failed")
            more = False
        steps.popleft()
        if more:
            steps.append(step)
        else:
            self._count -= 1


def _forget(held: list[Sized]) -> bool:
    held.clear()
    return False
