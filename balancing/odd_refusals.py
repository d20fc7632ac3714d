"""Whether a backend refuses what other backends of its pool serve, to one client or to all.

A server with another key, a shorter context or a missing flag refuses within a millisecond. So it
holds the least load and would get every request. But usually refusals are the client's own fault.
The backend is at fault only if its share of refusals is several times that of its peers. One client
is compared by its own refusals here and at the peers, and the result counts for it alone.
"""

from collections.abc import Sequence
from typing import Final

from penstock.balancing.backend import Backend

# This many more than the peers' share explains are no accident: eight of eight at one of two
# backends have a chance of one in 128.
REFUSALS_MIN: Final = 8
# How many times the peers' share is tolerated.
TIMES: Final = 4.0
# So many peers are compared. More would cost time, and change nothing.
PEERS_MAX: Final = 32


def refuses_alone(backend: Backend, peers: Sequence[Backend], client: str, now_s: float) -> int:
    """By how many refusals of `client` it exceeds its peers, beyond the least that counts."""
    given = backend.refusals.of(client, now_s)
    return _counted(_excess(backend, peers, given, [p.refusals.of(client, now_s) for p in peers]))


def refuses_all(backend: Backend, peers: Sequence[Backend], now_s: float) -> int:
    """By how many refusals of several clients it exceeds its peers. 0: not.

    Left out are the client with the largest excess, which would look like several, and those that
    are refused everywhere, which would hide what the others meet here.
    """
    refusals = backend.refusals
    clients = refusals.clients(now_s)
    given = refusals.count(now_s)
    if given - max([refusals.of(client, now_s) for client in clients], default=0) < REFUSALS_MIN:
        return 0
    peers = peers[:: len(peers) // PEERS_MAX + 1]
    at_peers = [peer.refusals.count(now_s) for peer in peers]
    excesses = []
    for client in clients:
        own = refusals.of(client, now_s)
        there = [peer.refusals.of(client, now_s) for peer in peers]
        excess = _excess(backend, peers, own, there)
        if excess or sum(there) < REFUSALS_MIN:
            excesses.append((excess, own, there))
        else:
            given -= own
            at_peers = [all_ - its for all_, its in zip(at_peers, there, strict=True)]
    if excesses:
        _, own, there = max(excesses)
        given -= own
        at_peers = [all_ - its for all_, its in zip(at_peers, there, strict=True)]
    return _counted(_excess(backend, peers, given, at_peers))


def _counted(excess: float) -> int:
    return max(0, int(excess) - REFUSALS_MIN + 1)


def _excess(
    backend: Backend, peers: Sequence[Backend], given: int, at_peers: Sequence[int]
) -> float:
    """How many more were given than several times the peers' share explains."""
    if not given or not peers:
        return 0.0
    requests = backend.refusals.requests(backend.requests_total)
    sent = sum(
        peer.refusals.requests(peer.requests_total)
        for peer, count in zip(peers, at_peers, strict=True)
        if count
    )
    share = sum(at_peers) / sent if sent else 0.0
    return max(0.0, given - TIMES * share * requests)
