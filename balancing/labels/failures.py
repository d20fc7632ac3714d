"""When a classifier that fails is asked again.

After some failures in a row it is not asked for a while, and then by one request at a time until it
answers. A client may have the classifier fail by what it sends, and must not take it from others.
So each client has a run of failures of its own. In the run of all it counts twice at most: three
clients must meet failures, and nobody an answer, before the others are held up. Then who has met
none tries first: those who have would otherwise take every try.
"""

from collections import OrderedDict
from typing import Final

# A run of so many failures holds questions up. One failure may be chance.
IN_A_ROW: Final = 5
OF_ONE_MAX: Final = 2
HELD_UP_S: Final = 5.0
# The most clients whose failures are counted. One that is forgotten is asked for again.
CLIENTS_MAX: Final = 1_024


class _Run:
    """Failures since the last answer. Of one client at most `of_one` count."""

    __slots__ = ("_by", "_of_one", "_until_s", "count", "probing")

    def __init__(self, of_one: int) -> None:
        self._of_one = of_one
        self._by: dict[str, int] = {}
        self._until_s = 0.0
        self.count = 0
        self.probing = False  # while it is held up, one question tries

    @property
    def holds(self) -> bool:
        return self.count >= IN_A_ROW

    def may_ask(self, now_s: float) -> bool:
        return not self.holds or (now_s >= self._until_s and not self.probing)

    def lets(self, client: str, now_s: float) -> bool:
        """The same for one of many clients. Who has met failures tries later than others."""
        return self.may_ask(now_s) and (
            not self.holds or client not in self._by or now_s >= self._until_s + HELD_UP_S
        )

    def failed(self, client: str, now_s: float) -> None:
        self.probing = False
        counted = self._by.get(client, 0)
        if not self.holds and counted < self._of_one:
            self._by[client] = counted + 1
            self.count += 1
        elif len(self._by) < CLIENTS_MAX:
            self._by.setdefault(client, 0)
        if self.holds:
            self._until_s = now_s + HELD_UP_S


class Failures:
    """The runs of all clients together, and of each. `begins` and `ends` go around a question."""

    def __init__(self) -> None:
        self._all = _Run(OF_ONE_MAX)
        self._of: OrderedDict[str, _Run] = OrderedDict()

    def may_ask(self, client: str, now_s: float) -> bool:
        """Whether the classifier may be asked now for this client."""
        own = self._of.get(client)
        return (own is None or own.may_ask(now_s)) and self._all.lets(client, now_s)

    def begins(self, client: str) -> None:
        """A question is asked, which may be asked."""
        own = self._of.get(client)
        self._all.probing = self._all.holds
        if own is not None:
            own.probing = own.holds

    def ends(self, client: str, now_s: float, *, answered: bool) -> None:
        """It was answered, or not."""
        if answered:
            self._of.pop(client, None)
            self._all = _Run(OF_ONE_MAX)
            return
        own = self._of.get(client)
        if own is None:
            own = self._of[client] = _Run(IN_A_ROW)
            if len(self._of) > CLIENTS_MAX:
                self._of.popitem(last=False)
        own.failed(client, now_s)
        self._all.failed(client, now_s)
