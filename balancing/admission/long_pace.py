"""When a long prompt may follow another one of its class, beside slow streams of higher classes.

A step that prefills a long prompt takes tens of times as long as one that only decodes, and all
streams wait for it. So beside slow streams the engine works on long prompts of one class for a
third of the time: after one that takes P seconds the next one goes 3P after it.

A shorter one need not wait for that. It goes once the streams have had twice the time that it takes
itself, and the next long one waits for three times its length more. Otherwise one of 60,000 tokens
kept another tenant's of 9,000 waiting for 23 s. All that go before their time take P together. So
the next long one goes 6P after the first one at the latest.
"""

from collections.abc import Sequence
from math import inf
from typing import Final

# The engine works on long prompts for one part of so many of the time.
LONG_PACE: Final = 3.0


class Long:
    """One that was sent. `put_off_s`: by how much it put the next one off. `first`: it did not go
    before its time."""

    __slots__ = ("first", "prefill_s", "put_off_s")

    def __init__(self, prefill_s: float, put_off_s: float, *, first: bool) -> None:
        self.prefill_s = prefill_s
        self.put_off_s = put_off_s
        self.first = first


class LongPace:
    """Of one backend, for each class."""

    __slots__ = ("_ends_s", "_latest_s", "_next_s")

    def __init__(self) -> None:
        self._ends_s: dict[int, float] = {}  # when the engine should have finished the last one
        self._next_s: dict[int, float] = {}  # when any other one may follow
        self._latest_s: dict[int, float] = {}  # how far shorter ones may put that off

    def sent(self, rank: int, prefill_s: float, now_s: float) -> Long:
        """One is sent that takes so long."""
        own_s = LONG_PACE * prefill_s
        before_s = max(now_s, self._next_s.get(rank, now_s))
        # Its time had come, or no stream was slow.
        first = now_s == before_s or self.holds_back(rank, prefill_s, now_s)
        next_s = max(before_s, now_s + own_s) if first else before_s + own_s
        if first:
            self._latest_s[rank] = next_s + own_s
        self._next_s[rank] = next_s
        self._ends_s[rank] = max(now_s, self._ends_s.get(rank, now_s)) + prefill_s
        return Long(prefill_s, next_s - before_s, first=first)

    def left(self, rank: int, long: Long, began_s: float, now_s: float) -> None:
        """One has ended before its first token: it took no more than the time since it began."""
        spared_s = long.prefill_s - (now_s - began_s)
        if spared_s <= 0.0 or rank not in self._next_s:
            return
        put_off_s = long.put_off_s * spared_s / long.prefill_s
        self._ends_s[rank] -= spared_s
        self._next_s[rank] -= put_off_s
        if long.first:
            self._latest_s[rank] -= put_off_s + LONG_PACE * spared_s

    def holds_back(self, rank: int, prefill_s: float, now_s: float) -> bool:
        """Whether one that takes so long would follow too soon."""
        next_s = self._next_s.get(rank, -inf)
        if now_s >= next_s:
            return False
        if next_s + LONG_PACE * prefill_s > self._latest_s[rank]:
            return True
        return now_s < self._ends_s[rank] + (LONG_PACE - 1.0) * prefill_s

    def reshape(self, ranks: Sequence[int]) -> None:
        """Take other classes. `ranks`: for each old one, the class that its requests have now."""
        self._ends_s = _moved(self._ends_s, ranks)
        self._next_s = _moved(self._next_s, ranks)
        self._latest_s = _moved(self._latest_s, ranks)

    def runs(self, now_s: float) -> bool:
        """Whether any class waits for anything."""
        for next_s in self._next_s.values():  # noqa: SIM110 - compiled: no generator
            if now_s < next_s:
                return True
        return False


def _moved(times_s: dict[int, float], ranks: Sequence[int]) -> dict[int, float]:
    """The latest of those that one class has now."""
    moved: dict[int, float] = {}
    for rank, time_s in times_s.items():
        moved[ranks[rank]] = max(time_s, moved.get(ranks[rank], -inf))
    return moved
