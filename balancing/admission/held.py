"""What waits in a line while none of its backends can serve: for one that starts or comes back.

That time does not count for a request's class, whose clock goes on once a backend can serve. It
does count for a client that said how long it waits. Nothing is learnt from it. A request is refused
if the pool's backends, at the speed that was measured last, could not serve it in time.
"""

from typing import Final

from penstock.balancing.admission.lack import Lack
from penstock.balancing.admission.passes import Passes
from penstock.balancing.admission.queue import Queue
from penstock.balancing.admission.ticket import Ticket

# A look for another pool takes so many turns over the flows.
TURNS_MAX: Final = 128


class Held:
    """Whether the requests of one line are held. `passes`: over those that are."""

    __slots__ = ("_held", "_queue", "active", "passes")

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._held: dict[Ticket, None] = {}  # who has been held for the longest time comes first
        self.active = False
        self.passes = Passes(queue, TURNS_MAX)

    def become(self, now_s: float, *, active: bool) -> None:
        """Begin or end to hold all that waits."""
        self.active = active
        self.passes.clear()
        self._held = {}
        for ticket in self._queue.oldest(self._queue.waiting):
            if active:
                self.add(ticket, now_s)
                ticket.general_then = ticket.general
                self._queue.counts(ticket, general=False)
            elif ticket.held_since_s is not None:
                ticket.release(now_s)
                self._queue.counts(ticket, general=ticket.general_then)

    def add(self, ticket: Ticket, now_s: float) -> None:
        """It is held from now on."""
        ticket.held_since_s, ticket.lack = now_s, Lack.BACKEND
        self._held[ticket] = None

    def remove(self, ticket: Ticket) -> None:
        """It has left."""
        self._held.pop(ticket, None)

    def over(self, most_s: float, most: int, now_s: float) -> list[Ticket]:
        """Up to `most` that have been held for longer than `most_s`."""
        found: list[Ticket] = []
        for ticket in self._held:
            since_s = ticket.held_since_s
            if since_s is None:  # it was held for itself alone, and is not any more
                continue
            if now_s - since_s <= most_s or len(found) == most:
                break
            found.append(ticket)
        return found
