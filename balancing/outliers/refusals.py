"""Whether a backend refuses what other backends of its pool serve, to one client or to all.

A server with another key, a shorter context or a missing flag refuses within a millisecond, so it
holds the least load and would get every request. But usually refusals are the client's own fault.
The backend is at fault only if it refuses several times as often as its peers. Clients are compared
in groups. One group alone decides for its own clients only, so no client makes a backend look bad
to others. A refusal is any answer that does not serve the request: a 4xx, an error inside a 200, a
login page, an answer without a token.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import xxhash

if TYPE_CHECKING:
    from penstock.balancing.backend import Backend

# After this time refusals and requests count half, and half again. After so many halves, nothing.
WINDOW_S: Final = 60.0
FORGOTTEN: Final = 20.0
# A client is in one of these, by its hash.
GROUPS: Final = 32
# This many more than the peers' share explains are no accident: eight of eight at one of two
# backends have a chance of one in 128.
REFUSALS_MIN: Final = 8
# How many times the peers' share is tolerated.
TIMES: Final = 4.0
# So many peers are compared. More would cost time, and change nothing.
PEERS_MAX: Final = 32


class Refusals:
    """The refusals of one backend by group of clients, and its requests. Both fade by halves."""

    __slots__ = ("_given", "_halved_s", "_requests_total", "requests")

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


def excess_refusals(
    backend: "Backend", peers: Sequence["Backend"], client: str, now_s: float
) -> tuple[int, int]:
    """Count a refusal. By how many refusals does the backend exceed its peers: for all clients, and
    for this one alone? 0: not.

    For all, the group with the largest excess is left out: it would look like several. So are
    groups that are refused everywhere: they would hide what others meet here.
    """
    given = backend.refusals.by_group(backend.requests_total, now_s)
    backend.refusals.add(client)
    peers = peers[:: len(peers) // PEERS_MAX + 1]
    there = [each.refusals.by_group(each.requests_total, now_s) for each in peers]
    sent = [each.refusals.requests for each in peers]

    def excess_of(groups: Sequence[int]) -> float:
        """How many more these groups were given than several times the peers' share explains."""
        own = sum([given[group] for group in groups])
        refused = [sum([each[group] for group in groups]) for each in there]
        asked = sum([each for each, some in zip(sent, refused, strict=True) if some])
        share = sum(refused) / asked if asked else 0.0
        return max(0.0, own - TIMES * share * backend.refusals.requests) if there else 0.0

    alone = _counted(excess_of([group_of(client)]))
    if sum(given) - max(given) < REFUSALS_MIN:
        return 0, alone
    excesses = [(excess_of([group]), group) for group in range(GROUPS)]
    kept = [
        (excess, group)
        for excess, group in excesses
        if excess or sum([each[group] for each in there]) < REFUSALS_MIN
    ]
    kept.remove(max(kept))
    return _counted(excess_of([group for _, group in kept])), alone


def _counted(excess: float) -> int:
    return max(0, int(excess) - REFUSALS_MIN + 1)
