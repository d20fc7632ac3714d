"""A timer wheel: many streams of few intervals on one timer of 1 ms.

A stream is sent to every `interval_ms`, at a phase that goes round, so that the
sends of all streams are spread evenly over the interval. Time is absolute: a
late tick is caught up with and no stream drifts. Idle, the wheel does not turn.
"""

import asyncio
from time import monotonic
from typing import Final, Protocol

TICK_S: Final = 0.001


class Turned(Protocol):
    """What is on the wheel. `turn` returns whether it stays."""

    def turn(self) -> bool: ...


class Wheel:
    """Turns what was put on it every so many milliseconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._slots: dict[int, list[list[Turned]]] = {}  # by interval, then by phase
        self._began_s = monotonic()
        self._tick = 0
        self._phase = 0
        self._turning = False

    def put(self, item: Turned, interval_ms: int) -> None:
        """Turn `item` every `interval_ms`, for the first time within one interval."""
        slots = self._slots.get(interval_ms)
        if slots is None:
            slots = self._slots[interval_ms] = [[] for _ in range(interval_ms)]
        self._phase += 1
        slots[self._phase % interval_ms].append(item)
        if not self._turning:
            self._turning = True
            self._tick = int((monotonic() - self._began_s) / TICK_S)
            self._loop.call_later(TICK_S, self._turn)

    def _turn(self) -> None:
        now = int((monotonic() - self._began_s) / TICK_S)
        while self._tick < now:
            self._tick += 1
            self.turn(self._tick)
        self._turning = any(any(slots) for slots in self._slots.values())
        if self._turning:
            self._loop.call_later(TICK_S, self._turn)

    def turn(self, tick: int) -> None:
        """Turn what is due at this tick, drop what does not stay."""
        for interval_ms, slots in self._slots.items():
            due = slots[tick % interval_ms]
            if due:
                slots[tick % interval_ms] = [item for item in due if item.turn()]
