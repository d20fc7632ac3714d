"""What waits in a line while none of its backends can serve: for one that starts or comes back.

That time does not count for a request's class, whose clock goes on once a backend can serve. It
does count for a client that said how long it waits. Nothing is learnt from it. A request is refused
if the pool's backends, at the speed that was measured last, could not serve it in time.
"""

from typing import Final

from penstock.balancing.admission.lack import Lack
from penstock.balancing.admission.queue import Queue
from penstock.balancing.admission.ticket import Ticket

# A few that have failed since stand before those that are held for longer.
FAILED_MAX: Final = 8
# What decides who serves it: the pool and the model that it names, and its way along its route.
Kind = tuple[bool, str, str | None, tuple[object, ...]]


class Held:
    """Whether the requests of one line are held, and for which there is a place elsewhere.

    They are looked at in passes: a pass takes several wakes if there are many.
    """

    __slots__ = ("_began_s", "_nowhere", "_queue", "active")

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.active = False
        self._began_s = 0.0  # the pass
        # For what this pass has found no place, and the shortest prompt of each, in tokens: longer
        # ones have none either.
        self._nowhere: dict[Kind, int] = {}

    def become(self, now_s: float, *, active: bool) -> None:
        """Begin or end to hold all that waits."""
        self.active = active
        self.end_pass()
        for ticket in self._queue.oldest(self._queue.waiting):
            if active:
                ticket.held_since_s, ticket.lack = now_s, Lack.BACKEND
                ticket.general_then = ticket.general
                self._queue.counts(ticket, general=False)
            elif ticket.held_since_s is not None:
                ticket.release(now_s)
                self._queue.counts(ticket, general=ticket.general_then)

    def go_on(self, now_s: float) -> None:
        """A wake looks at what is held. If it has no pass to go on with, one begins."""
        if not self._nowhere:
            self._began_s = now_s

    def end_pass(self) -> None:
        """All that was held when it began was looked at."""
        self._nowhere.clear()

    def is_seen(self, ticket: Ticket) -> bool:
        """Whether this pass need not look at it. What came since is for the next one, so that a
        pass ends whatever comes."""
        if ticket.held_since_s is not None and ticket.held_since_s > self._began_s:
            return True
        tokens = self._nowhere.get(_kind(ticket))
        return tokens is not None and ticket.ask.prompt_tokens >= tokens

    def found_nothing(self, ticket: Ticket) -> None:
        """There is no place for it elsewhere."""
        self._nowhere[_kind(ticket)] = ticket.ask.prompt_tokens

    def over(self, most_s: float, now_s: float) -> list[Ticket]:
        """Those that have been held for longer than that, first of all in each flow."""
        found: list[Ticket] = []
        for rank, backlog in enumerate(self._queue.backlogs):
            for flow in backlog:
                younger = 0
                for ticket in flow.queues[rank]:
                    since_s = ticket.held_since_s
                    if since_s is not None and now_s - since_s > most_s:
                        found.append(ticket)
                        continue
                    younger += 1
                    if younger == FAILED_MAX:
                        break
        return found


def _kind(ticket: Ticket) -> Kind:
    ask = ticket.ask
    return ask.first_pool, ask.pool, ask.model, ticket.way
