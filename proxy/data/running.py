"""How many requests each holder has under way: who makes the loop late, and who does not.

While the loop is late, new requests are refused. The requests of a few may be the cause, so a
holder with far fewer than most is still served.
"""

from typing import Final

# A holder is spared if it has less than this part of an even share.
SPARED: Final = 0.5


class Running:
    """The requests under way, by tenant or address."""

    __slots__ = ("_by_holder", "_total")

    def __init__(self) -> None:
        self._by_holder: dict[str, int] = {}
        self._total = 0

    def begin(self, holder: str) -> None:
        self._total += 1
        self._by_holder[holder] = self._by_holder.get(holder, 0) + 1

    def end(self, holder: str) -> None:
        self._total -= 1
        left = self._by_holder[holder] - 1
        if left:
            self._by_holder[holder] = left
        else:
            del self._by_holder[holder]

    def spares(self, holder: str) -> bool:
        """Whether it has so few that others must be the cause."""
        own = self._by_holder.get(holder, 0)
        holders = len(self._by_holder) + (holder not in self._by_holder)
        return holders > 1 and (own + 1) * holders < SPARED * (self._total + 1)
