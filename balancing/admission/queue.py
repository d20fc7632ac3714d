"""What waits: by class, in a class by flow, and in a flow by arrival.

Classes are strict, but for the share that each lower one is granted. In a class the flow that was
given the fewest tokens goes first (virtual token counters, Sheng et al., OSDI 2024). A flow that
comes back after a pause starts beside the one that was given least of those that wait: it saves
nothing up. So two flows that always have something waiting are given the same number of tokens, but
for the requests under way (the tests state the bound).
"""

from itertools import islice
from typing import Final

from penstock.balancing.admission.ticket import Flow, Ticket

# Tokens that a class can be owed by those above it: about the longest prompt.
OWED_MAX: Final = 131_072.0


class Queue:
    """The waiting requests of one pool. `shares`: what each class is granted at least, 0 to 1."""

    __slots__ = ("_flows", "_last_served", "_owed", "backlogs", "shares", "waiting")

    def __init__(self, shares: tuple[float, ...]) -> None:
        self.shares = shares
        self._flows: dict[str, Flow] = {}
        self.backlogs: list[dict[Flow, None]] = [{} for _ in shares]  # by class: who waits there
        self._owed = [0.0] * len(shares)
        self._last_served = 0.0  # of the flow that was last to have nothing waiting
        self.waiting = 0

    def flow(self, name: str, weight: float = 1.0) -> Flow:
        """The flow of this name. The number of names is bounded by whoever gives them."""
        flow = self._flows.get(name)
        if flow is None:
            flow = self._flows[name] = Flow(name, len(self.shares))
        flow.weight = weight
        return flow

    def add(self, ticket: Ticket, *, first: bool = False) -> None:
        """It waits. `first`: before the others of its flow and class."""
        flow = ticket.flow
        self._lift(flow)
        queue = flow.queues[ticket.rank]
        queue[ticket] = None
        if first:
            queue.move_to_end(ticket, last=False)
        flow.queued_tokens[ticket.rank] += ticket.tokens
        self.backlogs[ticket.rank][flow] = None
        self.waiting += 1
        ticket.waits = True

    def remove(self, ticket: Ticket) -> None:
        """It waits no more."""
        flow, rank = ticket.flow, ticket.rank
        queue = flow.queues[rank]
        del queue[ticket]
        flow.queued_tokens[rank] -= ticket.tokens
        self.waiting -= 1
        ticket.waits = False
        if not queue:
            del self.backlogs[rank][flow]
            self._last_served = flow.served
            if not self.backlogs[rank]:
                self._owed[rank] = 0.0

    def sent(self, ticket: Ticket) -> None:
        """It is sent: lower classes that wait are owed their shares of its tokens."""
        if not self.waiting:
            self._pass(ticket)
        rank = ticket.rank
        self._owed[rank] = max(0.0, self._owed[rank] - ticket.tokens)
        for lower in range(rank + 1, len(self.shares)):
            if self.backlogs[lower]:
                owed = self._owed[lower] + self.shares[lower] * ticket.tokens
                self._owed[lower] = min(OWED_MAX, owed)

    def _pass(self, ticket: Ticket) -> None:
        """It is sent while nothing waits, as if it had waited for no time."""
        flow = ticket.flow
        self._last_served = flow.served = max(flow.served, self._last_served)

    def ranks(self, most: int) -> list[tuple[int, int]]:
        """The classes in which something waits, in the order of their turns.

        With each: how many of them may be sent. A lower class that is owed something comes first,
        with one request; all come by rank, with up to `most`.
        """
        waiting = [rank for rank, backlog in enumerate(self.backlogs) if backlog]
        due = [(rank, 1) for rank in waiting[1:] if self._is_due(rank)]
        return due + [(rank, most) for rank in waiting]

    def _is_due(self, rank: int) -> bool:
        """Whether a class is owed enough for its next request."""
        if not self._owed[rank]:
            return False
        head = self.head(rank)
        return head is not None and self._owed[rank] >= head.tokens

    def head(self, rank: int) -> Ticket | None:
        """The next of a class: the oldest of the flow that was given least."""
        flow = _least(list(self.backlogs[rank]), {})
        return next(iter(flow.queues[rank])) if flow is not None else None

    def turns(self, rank: int, most: int) -> list[Ticket]:
        """The next ones of a class, as if each of them took its turn and was sent.

        So one flow whose requests find no room does not stand in the way of the others.
        """
        extra: dict[Flow, float] = {}
        flows = list(self.backlogs[rank])
        heads: dict[Flow, list[Ticket]] = {}
        order: list[Ticket] = []
        while flows and len(order) < most:
            flow = _least(flows, extra)
            assert flow is not None
            if flow not in heads:
                heads[flow] = list(islice(flow.queues[rank], most))[::-1]
            ticket = heads[flow].pop()
            order.append(ticket)
            extra[flow] = extra.get(flow, 0.0) + ticket.tokens / flow.weight
            if not heads[flow]:
                flows.remove(flow)
        return order

    def ahead_tokens(self, flow: Flow, rank: int, tokens: int) -> float:
        """The tokens that are sent before a new request of this flow and class.

        All of the higher classes, all of its own flow, and of each other flow as much as its
        counter lets pass until then.
        """
        ahead = 0.0
        for higher in range(rank):
            ahead += sum([each.queued_tokens[higher] for each in self.backlogs[higher]])
        mine = float(flow.queued_tokens[rank])
        until = self._served_if_it_waits(flow) + (mine + tokens) / flow.weight
        for other in self.backlogs[rank]:
            if other is not flow:
                passes = max(0.0, until - other.served) * other.weight
                ahead += min(float(other.queued_tokens[rank]), passes)
        return ahead + mine

    def _lift(self, flow: Flow) -> None:
        flow.served = self._served_if_it_waits(flow)

    def _served_if_it_waits(self, flow: Flow) -> float:
        """Its counter once it waits: not below the least of those that wait."""
        if any(flow.queues):
            return flow.served
        others = [each.served for backlog in self.backlogs for each in backlog]
        return max(flow.served, min(others, default=self._last_served))


def _least(flows: list[Flow], extra: dict[Flow, float]) -> Flow | None:
    """The flow that was given least, with what is added here. The first of equals."""
    least: Flow | None = None
    served = 0.0
    for flow in flows:
        given = flow.served + extra.get(flow, 0.0)
        if least is None or given < served:
            least, served = flow, given
    return least
