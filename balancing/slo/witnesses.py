"""Whether more than one client of a pool has waited in vain.

One client alone proves no outage where others were served: it may leave its own requests.
"""

from math import inf
from typing import Final

# Who was served or has waited within this time counts as there.
THERE_S: Final = 300.0


class _Two:
    """The last two clients that differ, and when each was seen last."""

    __slots__ = ("before", "before_s", "last", "last_s")

    def __init__(self) -> None:
        self.last = self.before = ""
        self.last_s = self.before_s = -inf

    def add(self, client: str, now_s: float) -> None:
        if client != self.last:
            self.before, self.before_s = self.last, self.last_s
            self.last = client
        self.last_s = now_s

    def other(self, client: str, since_s: float) -> bool:
        """Whether another one was seen since then."""
        return (self.last_s if self.last != client else self.before_s) >= since_s


class Witnesses:
    """Who was served in each pool lately, and who waited in vain."""

    __slots__ = ("_served", "_vain")

    def __init__(self) -> None:
        self._served: dict[str, _Two] = {}
        self._vain: dict[str, _Two] = {}

    def served(self, pool: str, client: str, now_s: float) -> None:
        """An answer began for a request of this client."""
        self._of(self._served, pool).add(client, now_s)

    def in_vain(self, pool: str, client: str, now_s: float) -> bool:
        """This client has left with nothing. Whether that counts: it does if another one has, too,
        or if no other one was served lately."""
        since_s = now_s - THERE_S
        alone = not self._of(self._served, pool).other(client, since_s)
        waits = self._of(self._vain, pool)
        waits.add(client, now_s)
        return alone or waits.other(client, since_s)

    def keep(self, pools: set[str]) -> None:
        """Forget all other pools."""
        for table in (self._served, self._vain):
            for gone in table.keys() - pools:
                del table[gone]

    def _of(self, table: dict[str, _Two], pool: str) -> _Two:
        return table.setdefault(pool, _Two())
