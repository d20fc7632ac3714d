"""Work that takes more than one turn of the loop: a few steps a turn, each in its order.

Large bodies are read so. However many there are, all of them together take a moment of every
turn, or one step, so that streams and probes beside them wait no longer. Parties take turns, step
by step, and each party's own bodies do: whoever sends many large ones delays its own.

A body that is not large is read in the turn that brings the end of it, up to so many bytes in a
turn: beyond that it is a step too. Many that end in one moment would hold the loop for seconds.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final

from balancing.outline import LARGE_BYTES

logger = logging.getLogger(__name__)

Step = Callable[[], bool]

# To read less than that costs no more than the rest of a request does.
SMALL_BYTES: Final = 8_192
# Of larger bodies, less than that and one more are read at once in a turn: some 5 ms at the most.
TURN_BYTES: Final = 65_536


class Rota:
    """Whose turn it is next."""

    __slots__ = ("_called", "_loop", "_now", "_read_bytes", "_turn_s", "_waiting")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        turn_s: float = 0.0,
        now: Callable[[], float] = monotonic,
    ) -> None:
        """`turn_s`: small steps go on for so long in a turn."""
        self._loop = loop
        self._turn_s = turn_s
        self._now = now
        self._waiting: dict[str, deque[Step]] = {}  # of each party, who is next first
        self._called = False  # the loop is to call
        self._read_bytes = 0  # at once, in this turn

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, party: str, step: Step) -> None:
        """Call `step` in turns to come for as long as it says that there is more to do."""
        self._call()
        self._waiting.setdefault(party, deque()).append(step)

    def spares(self, size_bytes: int) -> bool:
        """Whether a body of that size may be read at once, in this turn; it counts as read."""
        if size_bytes < SMALL_BYTES:
            return True
        if size_bytes > LARGE_BYTES or self._read_bytes >= TURN_BYTES:
            return False
        self._read_bytes += size_bytes
        self._call()
        return True

    def _call(self) -> None:
        if not self._called:
            self._called = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._called = False
        self._read_bytes = 0
        if not self._waiting:
            return
        until_s = self._now() + self._turn_s
        self._step()
        while self._waiting and self._now() < until_s:
            self._step()
        if self._waiting:
            self._call()

    def _step(self) -> None:
        party, steps = next(iter(self._waiting.items()))
        step = steps[0]
        try:
            more = step()  # may add others
        except Exception:  # its own is lost; others have their turns
            logger.exception("work in turns failed")
            more = False
        steps.popleft()
        if more:
            steps.append(step)
        del self._waiting[party]
        if steps:
            self._waiting[party] = steps
