"""Requests in the wrong line: its pool cannot serve them, or a better pool is back."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from penstock.balancing.admission.passes import Passes
from penstock.balancing.admission.places import Places
from penstock.balancing.admission.queue import SEEN_MAX, Queue, is_servable
from penstock.balancing.admission.ticket import Ticket
from penstock.balancing.backend import Backend
from penstock.balancing.fleet import Fleet
from penstock.balancing.gate import first_fit

# How often they are looked for.
LOOK_S: Final = 0.5
# In so many flows at a time. To look at all of 256 flows took a millisecond.
FLOWS_MAX: Final = 32
# A look for a better pool takes so many turns over the flows. With 128 turns it took up to 13 ms if
# 10,000 waited, and streams wait meanwhile.
TURNS_MAX: Final = 32
# It moves so many at most. Each of them costs two predictions: 32 of them took 11 ms.
MOVED_MAX: Final = 12


class Stranded:
    """Those of one line."""

    __slots__ = ("_better", "_left", "_looked_s", "_passes", "_places", "_queue")

    def __init__(self, queue: Queue, places: Places) -> None:
        self._queue = queue
        self._places = places
        self._looked_s = -LOOK_S
        self._left = 0  # how many flows were not looked at yet
        self._better: frozenset[Backend] = frozenset()  # those of better pools that could serve
        self._passes = Passes(queue, TURNS_MAX)  # over all that waits

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

    def movable(
        self, fleet: Fleet, refuses: Callable[[Ticket], bool], now_s: float
    ) -> Iterator[Ticket]:
        """Some that a better pool can serve. `refuses`: whether it would refuse this one now.

        If more of its backends can serve than before, all that waits is looked at anew.
        """
        known, self._better = self._better, self._better_now(fleet)
        if not self._better <= known:
            self._passes.renew()
        if not self._better:
            return
        self._passes.begin(now_s)
        moved = 0
        while moved < MOVED_MAX:
            ticket = self._passes.next()
            if ticket is None:
                return
            if not _has_better(fleet, ticket):
                self._passes.found_nothing(ticket)
            elif refuses(ticket):
                self._passes.found_refusal(ticket)
            else:
                self._passes.found_place()
                moved += 1
                yield ticket

    def _better_now(self, fleet: Fleet) -> frozenset[Backend]:
        """What can serve in the pools before the one of this line."""
        better: list[Backend] = []
        for pool in fleet.pools:
            if pool.backends and pool.backends[0] in self._places.members:
                break
            better += [each for each in pool.backends if each.can_serve]
        return frozenset(better)


def _has_better(fleet: Fleet, ticket: Ticket) -> bool:
    """Whether another pool than the one in whose line it waits would serve it now."""
    try:
        pool, _ = first_fit(fleet.resolve(ticket.ask), ticket.ask, ticket.tried)
    except LookupError:  # `unservable` finds it, and its client is told
        return False
    return pool.name != ticket.pool
