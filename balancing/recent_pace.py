"""How a backend's last few answers took beside what is usual anywhere: a first guess of its speed.

Fitted speeds need some dozens of samples, and what one that was restarted slow does meanwhile is
paid for by whoever is sent there. Of the last few answers the quicker ones tell as much: a request
may be slow for reasons of its own (a grammar to compile, an image to fetch), but where even the
quick ones take several times what they take elsewhere, the backend is slow. No client's answers
push out those of others but for a few, so that one client's odd requests cannot make a backend
look slow where others are served.
"""

from typing import Final

# Of a backend that is sent one request in four, about as many as come in the time it takes to see
# that it is slow.
KEPT: Final = 8
# Fewer may all be of one bad moment: the connects of a start, a burst.
ENOUGH: Final = 4
# Before anything is known of it: the slowest of known engines are three times as slow as the prior.
SLOW: Final = 4.0
# What is left after a long time: two more answers tell whether it is still so.
LONG_AGO: Final = 2
# No engine is quicker than this: the fastest of bench/sim/profiles.py takes 0.35 of the prior. So
# what is quick beyond belief makes no other look slow by more than it may be.
QUICKEST: Final = 0.2
# Nor does one answer say more than that it took very long: it may be a client's own fetch.
SLOWEST: Final = 20.0
# What took so many times as long as is usual here says something of its request, or of its client,
# and nothing of the backend.
ODD: Final = 4.0
# Of those that are as quick as the prior, none is: what looks quick may be text that nobody reads.
ODD_MIN: Final = 0.5
# A client's answers displace others' up to so many: fewer than the quicker quarter leaves out.
OWN_MAX: Final = 4


class RecentPace:
    """The last few answers: seconds over those of an engine as fast as the prior."""

    __slots__ = ("_clients", "_ratios")

    def __init__(self) -> None:
        self._ratios: list[float] = []
        self._clients: list[str] = []  # whose they were, in the same order

    def observe(self, ratio: float, client: str = "") -> None:
        """An answer of the client's took so many times as long as by the prior."""
        ratio = min(SLOWEST, max(QUICKEST, ratio))
        ratios, clients = self._ratios, self._clients
        if len(ratios) >= KEPT:
            oldest = clients.index(client) if clients.count(client) >= OWN_MAX else 0
            del ratios[oldest]
            del clients[oldest]
        ratios.append(ratio)
        clients.append(client)

    def is_news(self, ratio: float) -> bool:
        """Whether it tells anything that an answer took that long at the least."""
        return min(SLOWEST, ratio) >= (self.usual if self._ratios else SLOW)

    @property
    def clients(self) -> set[str]:
        """Whose they were."""
        return set(self._clients)

    def is_odd(self, ratio: float) -> bool:
        """Whether an answer took longer than a backend that is as quick as usual explains."""
        if ratio <= ODD * ODD_MIN or len(self._ratios) < ENOUGH:
            return False  # as nearly all are
        return ratio > ODD * self.usual

    @property
    def enough(self) -> bool:
        """Whether there are as many as a guess takes."""
        return len(self._ratios) >= ENOUGH

    @property
    def usual(self) -> float:
        """The middle one, the lower of two."""
        ratios = sorted(self._fair())
        return ratios[(len(ratios) - 1) // 2]

    @property
    def quick(self) -> float:
        """What a quarter of them are quicker than."""
        ratios = sorted(self._fair())
        return ratios[len(ratios) // 4]

    def _fair(self) -> list[float]:
        """No more of any client's than of all others', where there are others."""
        ratios, clients = self._ratios, self._clients
        if not clients:
            return ratios
        most = sorted(clients)[len(clients) // 2]  # who has more than half, if anybody has
        size, own = len(clients), clients.count(most)
        over = 2 * own - size
        if over <= 0 or own == size:
            return ratios
        fair = []
        for place in range(size):  # the oldest of theirs go
            if over > 0 and clients[place] == most:
                over -= 1
            else:
                fair.append(ratios[place])
        return fair

    def forget(self) -> None:
        """It was long ago."""
        del self._ratios[:-LONG_AGO]
        del self._clients[:-LONG_AGO]
