"""Load penalties for failures, and how often a backend refuses requests lately.

For a while after a failure a backend looks as if it had queued work.

A backend that fails within a millisecond always has the least load, so every policy that reads
loads would send it every request. A penalty is no part of the load: an idle backend holds nothing.

A failure that only one client met costs a penalty for that client alone. A second client's failure
shows that the backend is at fault.
"""

from enum import Enum
from typing import Final

import xxhash

# The base of Linkerd's load biaser: about what a failure costs a client.
PENALTY_S: Final = 5.0
# Failures in a row add up, so that a backend that only fails is tried less and less. After this
# many it is ejected, too, if its pool can spare it.
ROW_MAX: Final = 5
# The backend's own hint counts in full up to this. By then probes know more.
HINT_S_MAX: Final = 60.0


class Cause(Enum):
    """What explains a failure, as far as is known."""

    BACKEND = "backend"
    NO_REQUEST = "no_request"  # the backend, and no request could have caused it
    CLIENT = "client"  # the client: its requests fail everywhere
    KIND = "kind"  # the kind of request: it fails everywhere


class Penalty:
    """Seconds of work that a backend seems to have. They pass like work, one a second."""

    def __init__(self) -> None:
        self.until_s = 0.0  # the latest of all penalties
        self.charged_s = 0.0  # when it was charged last. 0.0: never
        self._until_s = 0.0  # the penalty for all clients
        self._client = ""  # the client with a penalty of its own
        self._client_until_s = 0.0
        self._explained = False  # that client's own requests explain all of its penalty

    def charge(self, now_s: float, *, in_row: int = 1, hint_s: float = 0.0) -> None:
        """Charge all clients for a failure, the `in_row`th one, or for `hint_s`."""
        self.charged_s = now_s
        self._until_s = max(self._until_s, now_s + _seconds(in_row, hint_s))
        self.until_s = max(self.until_s, self._until_s)

    def charge_for(
        self,
        client: str,
        now_s: float,
        *,
        in_row: int = 1,
        hint_s: float = 0.0,
        explained: bool = False,
    ) -> bool:
        """Charge only `client` for its failure. False if another client has a penalty already.

        `explained`: its requests fail everywhere, so its failure says nothing to other clients.
        """
        lasts = self._client_until_s > now_s
        if client != self._client:
            if lasts and (explained or not self._explained):
                return False
            lasts = False
            self._client = client
            self._client_until_s = 0.0
        self.charged_s = now_s
        self._explained = explained and (self._explained or not lasts)
        self._client_until_s = max(self._client_until_s, now_s + _seconds(in_row, hint_s))
        self.until_s = max(self.until_s, self._client_until_s)
        return True

    def forgive(self) -> None:
        """Remove all penalties: the backend generates again, and slow start limits it now."""
        self.until_s = self._until_s = self._client_until_s = 0.0

    def read(self, now_s: float, client: str = "") -> float:
        """Seconds of penalty left for `client`, usually 0.0."""
        if self.until_s <= now_s:
            return 0.0
        until_s = self._until_s
        if client == self._client:
            until_s = max(until_s, self._client_until_s)
        return until_s - now_s if until_s > now_s else 0.0


class Rest(Penalty):
    """How long a backend is left alone that has refused requests for load.

    When that is over, one request tries it. Others follow when one that came after the last refusal
    has its first token. Until then another one tries after each `again_s`.
    """

    def tried(self, client: str, now_s: float, again_s: float) -> None:
        """A request is sent there."""
        until_s = now_s + again_s
        if self._until_s > 0.0:
            self._until_s = max(self._until_s, until_s)
        elif client == self._client:
            self._client_until_s = max(self._client_until_s, until_s)
        else:
            return
        self.until_s = max(self.until_s, until_s)

    def answered(self, began_s: float) -> None:
        """A request that began then has its first token."""
        if began_s > self.charged_s:
            self.forgive()


def _seconds(in_row: int, hint_s: float) -> float:
    return min(hint_s, HINT_S_MAX) or PENALTY_S * max(1, min(in_row, ROW_MAX))


# The half-life of counted refusals and requests. After FORGOTTEN half-lives they are dropped.
WINDOW_S: Final = 60.0
FORGOTTEN: Final = 20.0
# A client is in one of these, by its hash.
GROUPS: Final = 32


class Refusals:
    """The refusals of one backend by group of clients, and its requests. Both fade by halves.

    A server with another key, a shorter context or a missing flag refuses within a millisecond, so
    it holds the least load and would get every request. But usually refusals are the client's own
    fault. The backend is at fault only if it refuses several times as often as its peers
    (`failures`). One group alone decides for its own clients only, so no client makes a backend
    look bad to others. A refusal is any answer that does not serve the request: a 4xx, an error
    inside a 200, a login page, an answer without a token.
    """

    def __init__(self) -> None:
        self._given = [0.0] * GROUPS
        self._halved_s: float | None = None
        self._requests_total = 0
        self.requests = 1.0

    def add(self, client: str) -> None:
        """Count a refusal. Call `by_group` before."""
        self._given[group_of(client)] += 1.0

    def by_group(self, requests_total: int, now_s: float) -> list[float]:
        """How many refusals each group got. `requests_total`: that its backend has had ever."""
        if self._halved_s is None:  # the first time: what came before is not known
            self._halved_s, self._requests_total = now_s, requests_total
        windows = max(1.0, (now_s - self._halved_s) / WINDOW_S)
        if windows > 1.0:
            self._halved_s = now_s
            kept = float(0.5 ** min(windows, FORGOTTEN))
            self._given = [kept * each for each in self._given]
            self.requests *= kept
        new = (requests_total - self._requests_total) / windows
        self.requests = max(1.0, self.requests + new)
        self._requests_total = requests_total
        return self._given


def group_of(client: str) -> int:
    """The group of a client, the same at all backends."""
    return xxhash.xxh3_64_intdigest(client.encode()) % GROUPS


NAMES_MAX: Final = 8
# At this number all counts are halved. So a client that was the most frequent long ago gives way.
NAMED_MAX: Final = 64


class ClientCounter:
    """`count`: all events. `most`: the most frequent client, empty before the first event.
    `others`: events that `most` did not cause. Once another client is the most frequent, its
    earlier events still count as those of others.

    Counts events by client in constant memory, to answer: is it more than one client?

    The clients with the most events are counted by name. A client that is not among the names takes
    one event from each of them, and a name without events left is dropped (Misra and Gries, 1982).
    So a flood of one client never looks like many clients, however many events there are. Of many
    clients that are alike, up to a ninth of the events count as those of the most frequent one.
    """

    def __init__(self) -> None:
        self._named: dict[str, int] = {}
        self.most = ""
        self.count = self.others = 0

    def add(self, client: str | None) -> None:
        """Add an event. `client` is None if no client can have caused it: it counts as another."""
        self.count += 1
        named = self._named
        if client is None:
            self.others += 1
            return
        known = named.get(client, 0)
        if known or len(named) < NAMES_MAX:
            known += 1
            named[client] = known
            if client != self.most and known > named.get(self.most, 0):
                self.most = client
            if known >= NAMED_MAX:
                self._named = {each: number // 2 for each, number in named.items() if number > 1}
        else:
            self._named = {each: number - 1 for each, number in named.items() if number > 1}
        if client != self.most:
            self.others += 1

    def clear(self) -> None:
        """Forget all events."""
        if self.count:
            self._named = {}
            self.most = ""
            self.count = self.others = 0

    def acquit(self) -> None:
        """Forget the events of the most frequent client: it caused them itself."""
        self._named.pop(self.most, None)
        self.most = max(self._named, key=self._named.__getitem__, default="")
        self.count, self.others = self.others, 0
