"""What waits in a line whose pool cannot serve it, or while a pool before that one is back."""

from itertools import islice
from typing import Final

from penstock.balancing.admission.passes import Passes
from penstock.balancing.admission.places import Places
from penstock.balancing.admission.queue import SEEN_MAX, Queue, is_servable
from penstock.balancing.admission.ticket import Ticket
from penstock.balancing.fleet import Fleet
from penstock.balancing.gate import fits

# How often they are looked for.
LOOK_S: Final = 0.5
# In so many flows at a time. To look at all of 256 flows took a millisecond.
FLOWS_MAX: Final = 32


class Stranded:
    """Those of one line. `passes`: over all that waits, to find what an earlier pool serves."""

    __slots__ = ("_left", "_looked_s", "_places", "_queue", "passes")

    def __init__(self, queue: Queue, places: Places) -> None:
        self._queue = queue
        self._places = places
        self._looked_s = -LOOK_S
        self._left = 0  # how many flows were not looked at yet
        self.passes = Passes(queue)

    def is_time(self, now_s: float) -> bool:
        """Whether to look for them again, or for the rest of them."""
        if not self._left:
            if now_s - self._looked_s < LOOK_S:
                return False
            self._looked_s = now_s
        return True

    def unservable(self) -> list[Ticket]:
        """Those among the first of each flow that no backend can serve, however empty it is.

        Looks at some flows at a time, because thousands of requests may wait in hundreds.
        """
        able = [backend for backend in self._places.members if backend.can_serve]
        backlogs = [(flow, rank) for rank, of in enumerate(self._queue.backlogs) for flow in of]
        end = min(self._left or len(backlogs), len(backlogs))
        # From the last to the first: those that leave do not move the flows that are still to come.
        begin = self._left = max(0, end - FLOWS_MAX)
        found: list[Ticket] = []
        for flow, rank in backlogs[begin:end]:
            seen = islice(flow.queues[rank], SEEN_MAX)
            found += [ticket for ticket in seen if not is_servable(ticket, able)]
        return found


def stays(fleet: Fleet, ticket: Ticket) -> bool:
    """Whether no other pool than the one in whose line it waits would serve it now."""
    try:
        pool, _ = fits(fleet.resolve(ticket.ask), ticket.ask, ticket.tried)
    except LookupError:  # it is told so as one that is unservable
        return True
    return pool.name == ticket.pool
