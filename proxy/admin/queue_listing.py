"""What waits for room at a backend, as JSON: by class, and who is next in each pool, and why.

Tenants are named. Clients without a key are not: their queues belong to addresses.
"""

import asyncio
from itertools import islice
from typing import Final

from penstock.balancing.admission.pool_queue import PoolQueue
from penstock.balancing.admission.queued_request import QueuedRequest
from penstock.proxy.data.plane import DataPlane

HEADS_MAX: Final = 20


async def queue_listing(plane: DataPlane, most: int = HEADS_MAX) -> dict[str, object]:
    """The classes, the highest first. Of each pool the pressure in each class, and the next
    requests in the order of their turns, `most` of them and one of each class.

    What one waits for takes a choice among its backends, so other work runs after each.
    """
    pools: list[dict[str, object]] = []
    firsts: dict[str, tuple[float, dict[str, object]]] = {}  # by class: since when it waits
    pressures: dict[str, dict[str, float]] = {}
    for of_pool, of_class, pressed in plane.pressures():
        pressures.setdefault(of_pool, {})[of_class] = round(pressed, 3)
    for name, pool in list(plane.admission.pools.items()):
        told = []
        seen = set()
        for request in _heads(pool, most):
            if not request.waits:
                continue
            of = plane.classes.names[request.rank]
            told.append(_told(plane, request, of))
            if of not in seen and (of not in firsts or request.since_s < firsts[of][0]):
                firsts[of] = request.since_s, {"pool": name} | told[-1]
            seen.add(of)
            await asyncio.sleep(0)
        pools.append(
            {
                "pool": name,
                "waiting": pool.queue.waiting,
                "pressure": pressures.get(name, {}),
                "next": told,
            }
        )
    classes = [
        {
            "name": name,
            "requests": requests,
            "tokens": tokens,
            "next": firsts[name][1] if name in firsts else None,
        }
        for name, requests, tokens in plane.queued()
    ]
    return {"enabled": plane.admission.enabled, "classes": classes, "pools": pools}


def _heads(pool: PoolQueue, most: int = HEADS_MAX) -> list[QueuedRequest]:
    """The next ones in the order of their turns, and at least one of each class."""
    ranks = [rank for rank, backlog in enumerate(pool.queue.backlogs) if backlog]
    heads: list[QueuedRequest] = []
    for place, rank in enumerate(ranks):
        lower = len(ranks) - place - 1
        heads += islice(pool.queue.turns(rank), max(1, most - len(heads) - lower))
    return heads


def _told(plane: DataPlane, request: QueuedRequest, service_class: str) -> dict[str, object]:
    now_s = plane.now()
    backend, reason = plane.admission.reason(request, now_s)
    return {
        "class": service_class,
        "tenant": request.ask.tenant or None,
        "waited_s": round(now_s - request.since_s, 3),
        "predicted_s": round(request.predicted_s, 3),
        "deadline_s": round(request.deadline_s, 3),
        "prompt_tokens": request.wait.tokens if request.wait is not None else None,
        "backend": backend.name if backend is not None else None,
        "waits_for": reason.value,
    }
