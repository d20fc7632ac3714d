"""One dispatch of a pool: send waiting requests, in the order of their turns, while any backend has
room.

A dispatch tries few requests: each try chooses a backend, and the event loop passes no stream on
meanwhile.
"""

from collections.abc import Callable, Collection
from itertools import islice
from typing import Final

from penstock.balancing.admission.pool_queue import PoolQueue
from penstock.balancing.admission.queue import is_servable
from penstock.balancing.admission.queued_request import (
    Elsewhere,
    Outcome,
    QueuedRequest,
    WaitReason,
)
from penstock.balancing.admission.tenant_queue import TenantQueue
from penstock.balancing.backend import Backend
from penstock.balancing.fleet import Fleet

# The most requests that one dispatch tries. With many backends each try takes longer.
TRIES_MAX: Final = 24
TRIES_MIN: Final = 8
BACKENDS_TRIED_MAX: Final = 512
# The most tries of one tenant that may find no room: alone, and beside other tenants.
TRIES_ALONE: Final = 8
TRIES_BESIDE: Final = 2
# The most waiting requests of a class that a dispatch reads, to find some that an open backend can
# serve.
SEEN_MAX: Final = 256
# Once a request of a higher class has waited this long, no request of a lower class passes it.
YIELD_S: Final = 0.25
# A request that waits for one of these reasons makes no lower class wait: that would not help it.
NO_YIELD: Final = (WaitReason.SHARE, WaitReason.LARGE, WaitReason.CHOICES, WaitReason.BACKEND)

Try = Callable[[QueuedRequest, bool], Outcome | None]
Told = tuple[QueuedRequest, Outcome]


class Dispatch:
    """One dispatch. `sent`: how many requests were sent or refused. `unseen`: some had no try."""

    def __init__(self, pool: PoolQueue, attempt: Try, outcomes: list[Told], now_s: float) -> None:
        """`attempt` sends a request if a backend has room. Its second argument: whether the class
        is owed its share."""
        self._pool = pool
        self._attempt = attempt
        self._outcomes = outcomes
        self._now_s = now_s
        backends = max(1, len(pool.members))
        self._tries = max(TRIES_MIN, min(TRIES_MAX, BACKENDS_TRIED_MAX // backends))
        self._failed: dict[TenantQueue, int] = {}  # tries that found no room
        self._opened = pool.opened(now_s)
        self.sent = 0
        self.unseen = False

    def run(self) -> None:
        """Try what waits in each class."""
        queue = self._pool.queue
        for rank, due in queue.ranks() if self._opened else ():
            if not due and must_yield(self._pool, rank, self._opened, self._now_s):
                break
            self._failed = {}
            self._run_class(rank, due=due)
            if not self._tries:
                # The next dispatches skip these tenants until all others have had a try.
                self._pool.rests.update(self._failed)
                self.unseen = True
                return
        self._pool.rests.clear()

    def _run_class(self, rank: int, *, due: bool) -> None:
        """Try requests of one class. A class that is owed its share gets one request sent."""
        pool, keeps = self._pool, not due  # whether a backend may be kept for the next request
        alone = len(pool.queue.backlogs[rank]) == 1
        for request in islice(pool.queue.turns(rank), SEEN_MAX):
            if not self._tries or not self._opened:
                return
            tenant = request.tenant
            assert tenant is not None
            if self._failed.get(tenant, 0) >= (TRIES_ALONE if alone else TRIES_BESIDE):
                continue
            if tenant in pool.rests:
                continue
            if not is_servable(request, self._opened):
                continue
            outcome = self._try(request, due=due)
            if outcome is None and keeps:
                keeps = pool.keep(request, self._now_s)
            if due and outcome is not None:
                return

    def _try(self, request: QueuedRequest, *, due: bool) -> Outcome | None:
        self._tries -= 1
        tenant = request.tenant
        assert tenant is not None
        outcome = self._attempt(request, due)
        if outcome is None:
            self._failed[tenant] = self._failed.get(tenant, 0) + 1
        else:
            self.sent += 1
            self._outcomes.append((request, outcome))
            self._opened = self._pool.opened(self._now_s)
        return outcome


def must_yield(pool: PoolQueue, rank: int, opened: Collection[Backend], now_s: float) -> bool:
    """Whether this class must wait for a higher one: a request there has waited for YIELD_S, and an
    open backend can serve it."""
    for higher in range(rank):
        for requests in pool.queue.backlogs[higher].values():
            first = next(iter(requests))
            wait = first.wait
            if wait is None or wait.kept_before or first.reason in NO_YIELD:
                continue
            if now_s - first.since_s > YIELD_S and is_servable(first, opened):
                return True
    return False


# How many requests a sweep looks at, and how many of them it tries to send.
SWEPT_MAX: Final = 64
TRIED_MAX: Final = 12
# How long a request that another pool would refuse stays before it is checked again.
STAYS_S: Final = 1.0
# A backend that has failed a request and still serves others may have it again after this time.
AGAIN_S: Final = 1.0


def sweep(pool: PoolQueue, fleet: Fleet, now_s: float) -> list[QueuedRequest]:
    """The next waiting requests that another pool can serve, or that their own pool cannot.

    While no backend of a pool can serve, its requests are parked. That time does not count for a
    request's class, whose clock goes on once a backend can serve. It does count for a client that
    said how long it waits. A sweep looks at some of what waits at a time: a parked request goes to
    another pool that can serve it, or to a fall-back of its route, unless it would be refused
    there. So does one whose own backends cannot serve it any more, and one that a better pool
    serves again.
    """
    own = frozenset(pool.members)
    better = [each for each in _before(pool, fleet) if each.can_serve]
    if pool.parks:
        better = [each for each in fleet.backends if each.can_serve and each not in own]
    able, found = pool.able, []
    for request in pool.queue.oldest(pool.swept + SWEPT_MAX)[pool.swept :]:
        pool.swept += 1
        wait = request.wait
        if wait is None or now_s < wait.stays_s:
            continue
        if is_servable(request, better) or not is_servable(request, able):
            found.append(request)
            if len(found) == TRIED_MAX:
                break
    if pool.swept >= pool.queue.waiting:
        pool.swept = 0
    return found


def parked_on(request: QueuedRequest, now_s: float) -> Elsewhere | None:
    """The outcome of a parked request that no backend can serve: a fall-back of its route may.
    None: it stays parked."""
    wait = request.wait
    if wait is None or wait.parked_s is None:
        return None
    if now_s >= wait.stays_s and request.elsewhere():
        return Elsewhere()
    if now_s - wait.parked_s >= AGAIN_S:
        request.tried = ()
    return None


def _before(pool: PoolQueue, fleet: Fleet) -> list[Backend]:
    """The backends of the pools that come before this one."""
    found: list[Backend] = []
    for each in fleet.pools:
        if each.name == pool.name:
            break
        found += each.backends
    return found
