"""How long a backend's last few answers took, relative to the prior: a first guess of its speed.

The fitted speeds need dozens of samples, and meanwhile a backend that restarted slow makes its
clients wait. The faster ones of the last few answers tell enough. A request may be slow for reasons
of its own (a grammar to compile, an image to fetch). But if even the fast ones take several times
what they take elsewhere, the backend is slow.

No client decides alone. Its answers displace those of other clients only up to a limit, and it has
no more answers in a median than all others together.
"""

from typing import Final

# For a backend that gets one request in four, about as many as come until it is seen to be slow.
KEPT: Final = 8
# Fewer may all come from one bad moment: the connects of a start, a burst.
ENOUGH: Final = 4
# Before anything is known of it. The slowest known engines are three times as slow as the prior.
SLOW: Final = 4.0
# What is kept after a long time: two more answers then tell whether it is still true.
LONG_AGO: Final = 2
# No engine is faster than this share of the prior; the fastest of bench/sim/profiles.py has 0.35.
# So an incredibly fast answer makes no other backend look slower than this allows.
QUICKEST: Final = 0.2
# An answer counts at most as this slow: its client may have caused it.
SLOWEST: Final = 20.0
# An answer this many times slower than usual says something about its request or its client, not
# about the backend.
ODD: Final = 4.0
# Below ODD times this, nothing is odd: a lower median may come from prompts that engines skip.
ODD_MIN: Final = 0.5
# A client's answers displace others' up to this many: fewer than the faster quarter leaves out.
OWN_MAX: Final = 4


class RecentPace:
    """The last few answers: seconds, divided by those of an engine as fast as the prior."""

    def __init__(self) -> None:
        self._ratios: list[float] = []
        self._clients: list[str] = []  # the clients, in the same order

    def observe(self, ratio: float, client: str = "") -> None:
        """An answer for `client` took `ratio` times as long as the prior."""
        ratios, clients = self._ratios, self._clients
        if len(ratios) >= KEPT:
            oldest = clients.index(client) if clients.count(client) >= OWN_MAX else 0
            del ratios[oldest]
            del clients[oldest]
        ratios.append(min(SLOWEST, max(QUICKEST, ratio)))
        clients.append(client)

    def is_news(self, ratio: float) -> bool:
        """Whether it is news that an answer took at least this long."""
        return min(SLOWEST, ratio) >= (self.usual if self._ratios else SLOW)

    def is_odd(self, ratio: float) -> bool:
        """Whether an answer took longer than a backend of the usual speed explains."""
        if ratio <= ODD * ODD_MIN or len(self._ratios) < ENOUGH:
            return False  # as nearly always
        return ratio > ODD * self.usual

    def is_odd_to_all(self, ratio: float) -> bool:
        """Whether it is odd also beside the slower half of the answers: one client may have the
        quicker half."""
        if ratio <= ODD * ODD_MIN or len(self._ratios) < ENOUGH:
            return False
        ratios = sorted(self._fair())
        return ratio > ODD * ratios[len(ratios) // 2]

    @property
    def only_client(self) -> str | None:
        """The client of all these answers. None: there are several, or none."""
        return self._clients[0] if len(set(self._clients)) == 1 else None

    @property
    def usual_by_client(self) -> dict[str, float]:
        """The lower median of each client's answers."""
        found: dict[str, list[float]] = {}
        for client, ratio in zip(self._clients, self._ratios, strict=True):
            found.setdefault(client, []).append(ratio)
        return {each: sorted(ratios)[(len(ratios) - 1) // 2] for each, ratios in found.items()}

    @property
    def count(self) -> int:
        """How many answers there are."""
        return len(self._ratios)

    @property
    def enough(self) -> bool:
        """Whether there are enough answers for a guess."""
        return len(self._ratios) >= ENOUGH

    @property
    def usual(self) -> float:
        """The median, the lower one of two."""
        ratios = sorted(self._fair())
        return ratios[(len(ratios) - 1) // 2]

    @property
    def quick(self) -> float:
        """The ratio below which a quarter of them are."""
        ratios = sorted(self._fair())
        return ratios[len(ratios) // 4]

    def forget(self) -> None:
        """The answers are old: keep only a few."""
        del self._ratios[:-LONG_AGO]
        del self._clients[:-LONG_AGO]

    def _fair(self) -> list[float]:
        """The ratios, with no more of any client than of all others, if there are others."""
        ratios, clients = self._ratios, self._clients
        if not clients:
            return ratios
        most = sorted(clients)[len(clients) // 2]  # the client with more than half, if any
        size, own = len(clients), clients.count(most)
        over = 2 * own - size
        if over <= 0 or own == size:
            return ratios
        fair = []
        for place in range(size):  # drop the oldest of that client
            if over > 0 and clients[place] == most:
                over -= 1
            else:
                fair.append(ratios[place])
        return fair
