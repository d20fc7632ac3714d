"""Runs work that takes more than one turn of the loop: a few steps a turn, parties in turn.

Large bodies are read this way. All of them together use a moment of every turn, or one step, so
streams and probes beside them do not wait longer. Parties take turns step by step, and so do the
bodies of one party: a party with many large bodies delays its own. A long step counts as several,
so that each waiting party gets as much of the time.

A body that is not large is read in the turn in which it is complete, up to a limit in bytes for
each turn. Beyond it the body becomes a step, too: many that end at once would block the loop for
seconds. While another party waits, only much smaller bodies are read at once. Otherwise a party
that sends one such body after the other would take most of every turn.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from time import monotonic
from typing import Final

from penstock.balancing.outline import LARGE_BYTES

logger = logging.getLogger(__name__)

Step = Callable[[], bool]

# A step counts once more for each of these times. There is a limit: the process may have slept.
STEP_S: Final = 0.00025
STEP_COUNT_MAX: Final = 400
# Reading less than this costs no more than the rest of a request does.
SMALL_BYTES: Final = 8_192
# Reading less than this delays waiting parties by no more than a step or two.
MODERATE_BYTES: Final = 32_768
# Of larger bodies, less than this plus one more body is read at once in a turn: 5 ms at most.
TURN_BYTES: Final = 65_536


class Rota:
    """Decides whose turn is next."""

    __slots__ = (
        "_called",
        "_count",
        "_entries",
        "_now",
        "_place",
        "_queue",
        "_read_bytes",
        "_turn_s",
        "_waiting",
        "loop",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        turn_s: float = 0.0,
        now: Callable[[], float] = monotonic,
    ) -> None:
        """`turn_s`: how long small steps go on in one turn."""
        self.loop = loop
        self._turn_s = turn_s
        self._now = now
        # The steps of each party in order. Empty for a party that is ahead and has none left.
        self._waiting: dict[str, deque[Step]] = {}
        self._count = 0  # of all waiting steps
        # A heap of the parties: (place in the order, number of the entry, party).
        self._queue: list[tuple[int, int, str]] = []
        self._place = 0  # the place of the last turn
        self._entries = 0  # made so far in the queue
        self._called = False  # whether the loop will call `_turn`
        self._read_bytes = 0  # read at once in this turn

    def __len__(self) -> int:
        return self._count

    def knows(self, party: str) -> bool:
        """Whether steps of this party wait, or it has just had more than others."""
        return party in self._waiting

    def add(self, party: str, step: Step) -> None:
        """Call `step` in later turns for as long as it returns that there is more to do."""
        self._call()
        self._count += 1
        steps = self._waiting.get(party)
        if steps is None:
            self._waiting[party] = steps = deque()
            self._enter(party, self._place + 1)  # so new parties cannot delay others for ever
        steps.append(step)

    def spares(self, party: str, size_bytes: int) -> bool:
        """Whether a body of this size may be read at once in this turn. If so, it is charged."""
        if size_bytes < SMALL_BYTES:
            return True
        others_wait = len(self._waiting) > (party in self._waiting)
        if size_bytes > (MODERATE_BYTES if others_wait else LARGE_BYTES):
            return False
        if self._read_bytes >= TURN_BYTES:
            return False
        self._read_bytes += size_bytes
        self._call()
        return True

    def _call(self) -> None:
        if not self._called:
            self._called = True
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._called = False
        self._read_bytes = 0
        if not self._count:
            return
        at_s = self._now()
        until_s = at_s + self._turn_s
        while self._count:
            self._place, _, party = heappop(self._queue)
            steps = self._waiting[party]
            if not steps:
                del self._waiting[party]
                continue
            self._step(steps)
            began_s, at_s = at_s, self._now()
            took = min(int((at_s - began_s) / STEP_S), STEP_COUNT_MAX)
            self._enter(party, self._place + 1 + took)
            if at_s >= until_s:
                break
        if self._count:
            self._call()
        else:  # no party is ahead of another
            self._waiting.clear()
            self._queue.clear()

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
