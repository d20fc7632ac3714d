"""What waits for room at a backend, as JSON: by class, and who is next in each pool, and why.

Tenants are named. Clients without a key are not: their queues belong to addresses.
"""

import asyncio
from typing import Final

from penstock.balancing.admission.line import Line
from penstock.balancing.admission.ticket import Ticket
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
    for pool, name, pressed in plane.pressures():
        pressures.setdefault(pool, {})[name] = round(pressed, 3)
    for pool, line in list(plane.admission.lines.items()):
        told = []
        seen = set()
        for ticket in _heads(line, most):
            if not ticket.waits:
                continue
            name = plane.classes.names[ticket.rank]
            told.append(_told(plane, ticket, name))
            if name not in seen and (name not in firsts or ticket.since_s < firsts[name][0]):
                firsts[name] = ticket.since_s, {"pool": pool} | told[-1]
            seen.add(name)
            await asyncio.sleep(0)
        pools.append(
            {
                "pool": pool,
                "waiting": line.queue.waiting,
                "pressure": pressures.get(pool, {}),
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


def _heads(line: Line, most: int = HEADS_MAX) -> list[Ticket]:
    """The next ones in the order of their turns, and at least one of each class."""
    queue, backends = line.queue, list(line.places.rooms)
    ranks = [rank for rank, backlog in enumerate(queue.backlogs) if backlog]
    heads: list[Ticket] = []
    for place, rank in enumerate(ranks):
        lower = len(ranks) - place - 1
        heads += queue.turns(rank, max(1, most - len(heads) - lower), backends)
    return heads


def _told(plane: DataPlane, ticket: Ticket, service_class: str) -> dict[str, object]:
    now_s = plane.now()
    backend, lack = plane.admission.lack(ticket, now_s)
    return {
        "class": service_class,
        "tenant": ticket.ask.tenant or None,
        "waited_s": round(now_s - ticket.since_s, 3),
        "predicted_s": round(ticket.predicted_s, 3),
        "deadline_s": round(ticket.deadline_s, 3),
        "prompt_tokens": ticket.tokens,
        "backend": backend.name if backend is not None else None,
        "waits_for": lack.value,
    }
