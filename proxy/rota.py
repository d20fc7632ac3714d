"""Work that takes more than one turn of the loop: a few steps a turn, each in its order.

Large bodies are read so. However many there are, all of them together take a moment of every
turn, or one step, so that streams and probes beside them wait no longer. Parties take turns, step
by step, and each party's own bodies do: whoever sends many large ones delays its own.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import monotonic

logger = logging.getLogger(__name__)

Step = Callable[[], bool]


class Rota:
    """Whose turn it is next."""

    __slots__ = ("_loop", "_now", "_turn_s", "_waiting")

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

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, party: str, step: Step) -> None:
        """Call `step` in turns to come for as long as it says that there is more to do."""
        if not self._waiting:
            self._loop.call_soon(self._turn)
        self._waiting.setdefault(party, deque()).append(step)

    def _turn(self) -> None:
        until_s = self._now() + self._turn_s
        self._step()
        while self._waiting and self._now() < until_s:
            self._step()
        if self._waiting:
            self._loop.call_soon(self._turn)

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
