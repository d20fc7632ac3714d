"""Whether a backend refuses what other backends of its pool serve, to one client or to all.

A server with another key, a shorter context or a missing flag refuses within a millisecond. So it
holds the least load and would get every request. But usually refusals are the client's own fault.
The backend is at fault only if its share of refusals is several times that of its peers. One client
is compared by its own refusals here and at the peers, and the result counts for it alone. Refusals
of all clients but the loudest are compared separately, so that no client can hide them.
"""

from collections.abc import Sequence
from typing import Final

from penstock.balancing.backend import Backend

# This many more than the peers' share explains are no accident: eight of eight at one of two
# backends have a chance of one in 128.
REFUSALS_MIN: Final = 8
# How many times the peers' share is tolerated.
TIMES: Final = 4.0


def refuses_alone(backend: Backend, peers: Sequence[Backend], client: str, now_s: float) -> int:
    """By how many refusals of `client` it exceeds its peers, beyond the least that counts."""
    given = backend.refusals.of(client, now_s)
    return _beyond(backend, peers, given, [p.refusals.of(client, now_s) for p in peers])


def refuses_all(backend: Backend, peers: Sequence[Backend], now_s: float) -> int:
    """By how many refusals of all clients but the loudest it exceeds its peers. 0: not."""
    others = backend.refusals.others(now_s)
    return _beyond(backend, peers, others, [p.refusals.others(now_s) for p in peers])


def _beyond(backend: Backend, peers: Sequence[Backend], given: int, at_peers: Sequence[int]) -> int:
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
