"""How many requests each holder has under way: who makes the loop late, and who does not.

While the loop is late, new requests are refused. The requests of a few holders may be the cause. So
a holder with less than half of an even share is still served. Requests that began a moment ago
count, too: a flood of requests that end at once makes the loop as late.
"""

from typing import Final

# A holder is spared if it has less than this part of an even share.
SPARED: Final = 0.5
# After its beginning a request counts once more, for one to two of these times.
LATELY_S: Final = 1.0


class Running:
    """The requests under way and those begun lately, by tenant or address."""

    __slots__ = ("_before", "_lately", "_running", "_since_s")

    def __init__(self) -> None:
        self._running: dict[str, int] = {}
        self._lately: dict[str, int] = {}
        self._before: dict[str, int] = {}
        self._since_s = 0.0

    def begin(self, holder: str, now_s: float) -> None:
        if now_s - self._since_s >= LATELY_S:
            recent = now_s - self._since_s < 2 * LATELY_S
            self._before = self._lately if recent else {}
            self._lately = {}
            self._since_s = now_s
        self._running[holder] = self._running.get(holder, 0) + 1
        self._lately[holder] = self._lately.get(holder, 0) + 1

    def end(self, holder: str) -> None:
        left = self._running[holder] - 1
        if left:
            self._running[holder] = left
        else:
            del self._running[holder]

    def has(self, holder: str) -> bool:
        """Whether it has requests under way."""
        return holder in self._running

    @property
    def total(self) -> int:
        """The requests under way."""
        return sum(self._running.values())

    def spares(self, holder: str) -> bool:
        """Whether it has so few that others must be the cause."""
        tables = (self._running, self._lately, self._before)
        own = sum([table.get(holder, 0) for table in tables])
        total = sum([sum(table.values()) for table in tables])
        holders = max([len(table) + (holder not in table) for table in tables])
        return holders > 1 and (own + 1) * holders < SPARED * (total + 1)
