"""Whether a client that left with nothing is the only witness of an outage.

One client alone proves none where others were served lately: it may leave its own requests. It is
believed if another one waits in vain at the same time, or if no answer begins for long.
"""

from math import inf
from typing import Final

# Who was served within this time counts as there.
THERE_S: Final = 300.0
# One client is believed alone after this time, if nobody's answer has begun in it.
ALONE_S: Final = 30.0


class _Two:
    """The last two clients that differ, and when each was seen last."""

    __slots__ = ("before", "before_s", "last", "last_s")

    def __init__(self) -> None:
        self.last = self.before = ""
        self.last_s = self.before_s = -inf

    def add(self, client: str, at_s: float) -> None:
        if client != self.last:
            self.before, self.before_s = self.last, self.last_s
            self.last = client
        self.last_s = at_s

    def other(self, client: str, since_s: float) -> bool:
        """Whether another one was seen since then."""
        return (self.last_s if self.last != client else self.before_s) >= since_s


class _Pool:
    """`vain_since_s`: since when those that left have waited, and nobody was served."""

    __slots__ = ("served", "vain", "vain_since_s")

    def __init__(self) -> None:
        self.served = _Two()
        self.vain = _Two()
        self.vain_since_s = inf


class Witnesses:
    """Who was served in each pool lately, and who waited in vain."""

    __slots__ = ("_pools",)

    def __init__(self) -> None:
        self._pools: dict[str, _Pool] = {}

    def served(self, pool: str, client: str, began_s: float) -> None:
        """An answer began then for a request of this client. It may have ended long after."""
        known = self._of(pool)
        if began_s > known.served.last_s:
            known.served.add(client, began_s)
        if began_s >= known.vain_since_s:
            known.vain_since_s = inf

    def in_vain(self, pool: str, client: str, since_s: float, now_s: float) -> bool:
        """This client has left with nothing, after a wait since then. Whether that counts."""
        known = self._of(pool)
        known.vain_since_s = min(known.vain_since_s, since_s)
        alone = not known.served.other(client, now_s - THERE_S)
        another = known.vain.other(client, since_s)
        known.vain.add(client, now_s)
        return alone or another or now_s - known.vain_since_s >= ALONE_S

    def keep(self, pools: set[str]) -> None:
        """Forget all other pools."""
        for gone in self._pools.keys() - pools:
            del self._pools[gone]

    def _of(self, pool: str) -> _Pool:
        return self._pools.setdefault(pool, _Pool())
