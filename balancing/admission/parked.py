"""Requests whose pool has no usable backend. They wait for one, or move to another pool.

While no backend of a pool can serve, its requests are parked. That time does not count for a
request's class, whose clock goes on once a backend can serve. It does count for a client that said
how long it waits. A sweep looks at some of what waits at a time: a parked request goes to another
pool that can serve it, or to a fall-back of its route, unless it would be refused there. So does
one whose own backends cannot serve it any more, and one that a better pool serves again.
"""

from typing import Final

from penstock.balancing.admission.pool_queue import PoolQueue
from penstock.balancing.admission.queue import is_servable
from penstock.balancing.admission.queued_request import Elsewhere, QueuedRequest
from penstock.balancing.backend import Backend
from penstock.balancing.fleet import Fleet

# How many requests a sweep looks at, and how many of them it tries to send.
SWEPT_MAX: Final = 64
TRIED_MAX: Final = 12
# How long a request that another pool would refuse stays before it is checked again.
STAYS_S: Final = 1.0
# A backend that has failed a request and still serves others may have it again after this time.
AGAIN_S: Final = 1.0


def sweep(pool: PoolQueue, fleet: Fleet, now_s: float) -> list[QueuedRequest]:
    """The next waiting requests that another pool can serve, or that their own pool cannot."""
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
