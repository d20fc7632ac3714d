"""What waits for room at a backend, as JSON: by class, and for each pool who is next.

Tenants are named. Clients without a key are not: their queues belong to addresses.
"""

from typing import Final

from penstock.balancing.admission.ticket import Ticket
from penstock.proxy.data.plane import DataPlane

HEADS_MAX: Final = 20


def queue_listing(plane: DataPlane, now_s: float) -> dict[str, object]:
    """The classes, the highest first. Of each pool the pressure in each class, and the next
    requests in the order of their turns."""
    names = plane.classes.names
    classes = [
        {"name": name, "requests": requests, "tokens": tokens}
        for name, (requests, tokens) in zip(
            names, map(plane.admission.queued, range(len(names))), strict=True
        )
    ]
    pressures: dict[str, dict[str, float]] = {}
    for pool, name, pressed in plane.pressures():
        pressures.setdefault(pool, {})[name] = round(pressed, 3)
    pools = [
        {
            "pool": pool,
            "waiting": line.queue.waiting,
            "pressure": pressures.get(pool, {}),
            "next": [
                _told(ticket, names[ticket.rank], now_s)
                for rank in range(len(names))
                for ticket in line.queue.turns(rank, HEADS_MAX, list(line.rooms))
            ][:HEADS_MAX],
        }
        for pool, line in plane.admission.lines.items()
    ]
    return {"enabled": plane.admission.holds, "classes": classes, "pools": pools}


def _told(ticket: Ticket, service_class: str, now_s: float) -> dict[str, object]:
    return {
        "class": service_class,
        "tenant": ticket.ask.tenant or None,
        "waited_s": round(now_s - ticket.since_s, 3),
        "predicted_s": round(ticket.predicted_s, 3),
        "deadline_s": round(ticket.deadline_s, 3),
        "prompt_tokens": ticket.tokens,
    }
