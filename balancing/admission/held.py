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

# Requests that a backend has failed stand first in their flow, though held for less time. So many
# are passed over.
FAILED_MAX: Final = 8
# A look for another pool takes so many turns over the flows.
TURNS_MAX: Final = 128


class Held:
    """Whether the requests of one line are held. `passes`: over those that are."""

    __slots__ = ("_queue", "active", "passes")

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.active = False
        self.passes = Passes(queue, TURNS_MAX)

    def become(self, now_s: float, *, active: bool) -> None:
        """Begin or end to hold all that waits."""
        self.active = active
        self.passes.clear()
        for ticket in self._queue.oldest(self._queue.waiting):
            if active:
                ticket.held_since_s, ticket.lack = now_s, Lack.BACKEND
                ticket.general_then = ticket.general
                self._queue.counts(ticket, general=False)
            elif ticket.held_since_s is not None:
                ticket.release(now_s)
                self._queue.counts(ticket, general=ticket.general_then)

    def over(self, most_s: float, most: int, now_s: float) -> list[Ticket]:
        """Up to `most` that have been held for longer than `most_s`, first of all in each flow."""
        found: list[Ticket] = []
        for rank, backlog in enumerate(self._queue.backlogs):
            for flow in backlog:
                younger = 0
                for ticket in flow.queues[rank]:
                    since_s = ticket.held_since_s
                    if since_s is not None and now_s - since_s > most_s:
                        if len(found) == most:
                            return found
                        found.append(ticket)
                        continue
                    younger += 1
                    if younger == FAILED_MAX:
                        break
        return found
