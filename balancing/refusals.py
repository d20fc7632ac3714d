"""Refusals that a backend gives and its peers do not, within a minute, and who got them.

A refusal is whatever was passed on that answers nothing: a 4xx, an error inside a 200, a login
page, an answer without a token. A server with another key, a shorter context or a missing flag
gives them within a millisecond, so it holds the least load and would be sent everything. But
they are the client's own fault as a rule: only a share of the requests that is several times
the peers' says otherwise. One client alone is compared by what it got itself, here and at the
peers, and counts for itself alone; what all others but the loudest got is compared apart, so
that nobody can hide it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from balancing.accusers import Accusers

if TYPE_CHECKING:
    from balancing.backend import Backend

WINDOW_S: Final = 60.0
# So many beyond what the peers would have given are no accident: eight of eight at one of two
# backends are one in 128.
REFUSALS_MIN: Final = 8
# Of the peers' share.
TIMES: Final = 4.0


class Refusals:
    """What one backend refused in the present window."""

    __slots__ = ("_given", "_requests", "_since_s")

    def __init__(self) -> None:
        self._given = Accusers()
        self._since_s = float("-inf")
        self._requests = 0  # that it had been sent in all when the window began

    def add(self, client: str, requests_total: int, now_s: float) -> None:
        if now_s - self._since_s > WINDOW_S:
            self._since_s = now_s
            self._requests = requests_total - 1  # this one is of the window
            self._given.clear()
        self._given.add(client)

    def of(self, client: str, now_s: float) -> int:
        """Those that this client got, as far as it is among the loudest."""
        return self._given.of(client) if now_s - self._since_s <= WINDOW_S else 0

    def others(self, now_s: float) -> int:
        """Those that all but the loudest client got."""
        return self._given.others if now_s - self._since_s <= WINDOW_S else 0

    def requests(self, requests_total: int) -> int:
        """What it was sent in the window."""
        return max(1, requests_total - self._requests)


def refuses_alone(backend: "Backend", peers: Sequence["Backend"], client: str, now_s: float) -> int:
    """How far beyond the least that counts it refused `client` what its peers do not; 0 for not."""
    given = backend.refusals.of(client, now_s)
    return _beyond(backend, peers, given, [p.refusals.of(client, now_s) for p in peers])


def refuses_all(backend: "Backend", peers: Sequence["Backend"], now_s: float) -> int:
    """The same for all clients but the loudest."""
    others = backend.refusals.others(now_s)
    return _beyond(backend, peers, others, [p.refusals.others(now_s) for p in peers])


def _beyond(
    backend: "Backend", peers: Sequence["Backend"], given: int, at_peers: Sequence[int]
) -> int:
    if given < REFUSALS_MIN or not peers:
        return 0
    requests = backend.refusals.requests(backend.requests_total)
    sent = sum(
        peer.refusals.requests(peer.requests_total)
        for peer, count in zip(peers, at_peers, strict=True)
        if count
    )
    share = sum(at_peers) / sent if sent else 0.0
    return max(0, int(given - TIMES * share * requests) - REFUSALS_MIN + 1)
