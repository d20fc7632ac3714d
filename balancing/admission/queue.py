"""What waits: by class, in a class by flow, and in a flow by arrival.

Classes are strict, but for the share that each lower one is granted. In a class the flow that was
given the fewest tokens goes first (virtual token counters, Sheng et al., OSDI 2024). A flow that
comes back after a pause starts beside the one that was given least of those that wait: it saves
nothing up. So two flows that always have something waiting are given the same number of tokens, but
for the requests under way (the tests state the bound).
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final

from penstock.balancing.admission.lack import Lack
from penstock.balancing.admission.ticket import Flow, Ticket
from penstock.balancing.backend import Backend

# How many of a flow are seen, to find those that an open backend may serve.
SEEN_MAX: Final = 16
# Tokens that a class can be owed by those above it, and those that are enough for any request. It
# is owed more than OWED_MAX only if one that is seen needs more. Otherwise one that cannot go saves
# up tokens, and others of its class spend them at once.
OWED_MAX: Final = 16_384.0
# It may be owed so many more until that is looked at. A look at 256 flows takes 0.7 ms.
OWED_SLACK: Final = 2_048.0
DUE_MAX: Final = 65_536.0
# A generated token counts as two prompt tokens, as in VTC: it takes a place in a step of its own.
ANSWER_WEIGHT: Final = 2.0
# Lower classes pass nothing once one of a higher class has waited for so long.
YIELD_S: Final = 0.25


class Queue:
    """The waiting requests of one pool. `shares`: what each class is granted at least, 0 to 1."""

    __slots__ = (
        "_last_served",
        "_most_owed",
        "_owed",
        "_weights",
        "backlogs",
        "flows",
        "generals",
        "shares",
        "waiting",
    )

    def __init__(self, shares: tuple[float, ...]) -> None:
        self.shares = shares
        self.flows: dict[str, Flow] = {}
        self.backlogs: list[dict[Flow, None]] = [{} for _ in shares]  # by class: who waits there
        self._owed = [0.0] * len(shares)
        self._most_owed = [OWED_MAX] * len(shares)  # what each is owed before it is looked at
        self._last_served = 0.0  # of the flow that was last to have nothing waiting
        self._weights: Mapping[str, float] = {}
        self.generals = [0] * len(shares)  # by class: how many wait that every backend may serve
        self.waiting = 0

    def general(self) -> int:
        """How many wait that every backend may serve."""
        return sum(self.generals)

    def flow(self, name: str) -> Flow:
        """The flow of this name. The number of names is bounded by whoever gives them."""
        flow = self.flows.get(name)
        if flow is None:
            weight = self._weights.get(name, 1.0)
            flow = self.flows[name] = Flow(name, len(self.shares), weight)
        return flow

    def seen(self, name: str) -> Flow:
        """The same for a dry run: a flow that is not there yet is made, and not kept."""
        flow = self.flows.get(name)
        return flow or Flow(name, len(self.shares), self._weights.get(name, 1.0))

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Take the weights of flows, by name. Others have a weight of 1."""
        self._weights = weights
        for name, flow in self.flows.items():
            flow.weight = weights.get(name, 1.0)

    def take_all(self) -> list[Ticket]:
        """All that waits, which waits no more."""
        waiting = self.oldest(self.waiting)
        for ticket in waiting:
            self.remove(ticket)
        return waiting

    def oldest(self, most: int) -> list[Ticket]:
        """Up to so many that wait, whoever may serve them: by class, and in a flow the oldest."""
        found: list[Ticket] = []
        for rank, backlog in enumerate(self.backlogs):
            for flow in backlog:
                found += islice(flow.queues[rank], most - len(found))
        return found

    def reshape(self, shares: tuple[float, ...]) -> None:
        """Take other classes. Nothing waits."""
        assert not self.waiting
        self.shares = shares
        self._owed = [0.0] * len(shares)
        self._most_owed = [OWED_MAX] * len(shares)
        self.backlogs = [{} for _ in shares]
        self.generals = [0] * len(shares)
        for flow in self.flows.values():
            flow.queues = [OrderedDict() for _ in shares]
            flow.queued_tokens = [0] * len(shares)

    def add(self, ticket: Ticket, *, first: bool = False) -> None:
        """It waits. `first`: before the others of its flow and class."""
        flow = ticket.flow
        self._lift(flow)
        queue = flow.queues[ticket.rank]
        queue[ticket] = None
        if first:
            queue.move_to_end(ticket, last=False)
        # Who waits for others of its kind keeps nobody else waiting.
        ticket.queued_tokens = 0 if ticket.lack in (Lack.GIANTS, Lack.LONG) else ticket.tokens
        flow.queued_tokens[ticket.rank] += ticket.queued_tokens
        self.backlogs[ticket.rank][flow] = None
        self.waiting += 1
        self.generals[ticket.rank] += ticket.general
        ticket.waits = True

    def remove(self, ticket: Ticket) -> None:
        """It waits no more."""
        flow, rank = ticket.flow, ticket.rank
        queue = flow.queues[rank]
        del queue[ticket]
        flow.queued_tokens[rank] -= ticket.queued_tokens
        self.waiting -= 1
        self.generals[rank] -= ticket.general
        ticket.waits = False
        if ticket.tokens > OWED_MAX:
            self._most_owed[rank] = OWED_MAX
        if not queue:
            del self.backlogs[rank][flow]
            self._last_served = flow.served
            if not self.backlogs[rank]:
                self._owed[rank] = 0.0

    def counts(self, ticket: Ticket, *, general: bool) -> None:
        """Whether one that waits tells anything of the pool by that."""
        self.generals[ticket.rank] += general - ticket.general
        ticket.general = general

    def sent(self, ticket: Ticket) -> None:
        """It is sent: lower classes that wait are owed their shares of its tokens."""
        if self.waiting:
            self._lift(ticket.flow)  # it saves nothing up by never having to wait
        else:
            self._pass(ticket)
        rank = ticket.rank
        self._owed[rank] = max(0.0, self._owed[rank] - ticket.tokens)
        for lower in range(rank + 1, len(self.shares)):
            if self.backlogs[lower]:
                # A share of all tokens, not of those above.
                share = self.shares[lower] / (1.0 - self.shares[lower])
                owed = self._owed[lower] + share * ticket.tokens
                if owed > self._most_owed[lower]:
                    enough = self._enough(lower)
                    self._most_owed[lower] = enough + OWED_SLACK
                    owed = min(owed, enough)
                self._owed[lower] = owed

    def _enough(self, rank: int) -> float:
        """The most that a class can be owed."""
        most = 0
        for flow in self.backlogs[rank]:
            for ticket in islice(flow.queues[rank], SEEN_MAX):
                most = max(most, ticket.tokens)
        return max(OWED_MAX, min(DUE_MAX, float(most)))

    def _pass(self, ticket: Ticket) -> None:
        """It is sent while nothing waits, as if it had waited for no time."""
        flow = ticket.flow
        self._last_served = flow.served = max(flow.served, self._last_served)

    def ranks(self) -> list[tuple[int, bool]]:
        """The classes in which something waits, in the order of their turns.

        With each: whether it has this turn because it is owed something. Then one request may go.
        After those all come by rank.
        """
        waiting = [rank for rank, backlog in enumerate(self.backlogs) if backlog]
        due = [(rank, True) for rank in waiting[1:] if self.is_due(rank)]
        return due + [(rank, False) for rank in waiting]

    def is_due(self, rank: int) -> bool:
        """Whether a class is owed enough for one of its next requests."""
        if not self._owed[rank]:
            return False
        for flow in self.backlogs[rank]:  # noqa: SIM110 - compiled: no generator
            if self.is_owed(next(iter(flow.queues[rank]))):
                return True
        return False

    def is_owed(self, ticket: Ticket) -> bool:
        """Whether its class is owed enough for it."""
        return self._owed[ticket.rank] >= min(ticket.tokens, DUE_MAX)

    def may_pass(self, ticket: Ticket) -> bool:
        """Whether a new request may be sent while others wait: it would be looked at first."""
        for higher in range(ticket.rank):
            if self.backlogs[higher]:
                return False
        for lower in range(ticket.rank + 1, len(self.backlogs)):
            if self.is_due(lower):
                return False
        flow = ticket.flow
        if flow.queues[ticket.rank]:
            return False
        served = self.served_if_it_waits(flow)
        for other in self.backlogs[ticket.rank]:  # noqa: SIM110 - compiled: no generator
            if other.served < served:
                return False
        return True

    def turns(
        self,
        rank: int,
        most: int,
        opened: Collection[Backend],
        without: Collection[Flow] = (),
    ) -> list[Ticket]:
        """The next ones of a class that one of these backends may serve.

        Each one listed counts as sent before the next is picked. So one flow rarely fills the list.
        `without`: flows that are left out.
        """
        heads: dict[Flow, list[Ticket]] = {}
        order: list[Ticket] = []
        flows = [flow for flow in self.backlogs[rank] if flow not in without]
        heap = [(flow.served, number) for number, flow in enumerate(flows)]
        heapify(heap)
        while heap and len(order) < most:
            served, number = heappop(heap)
            flow = flows[number]
            if flow not in heads:
                heads[flow] = servable(flow, rank, most, opened)[::-1]
            if heads[flow]:
                ticket = heads[flow].pop()
                order.append(ticket)
                charge = ticket.tokens + ANSWER_WEIGHT * ticket.answer_tokens
                heappush(heap, (served + charge / flow.weight, number))
        return order

    def ahead_tokens(self, flow: Flow, rank: int, tokens: int) -> float:
        """The tokens that are sent before a new request of this flow and class."""
        return sum([before for _, _, before in self.ahead(flow, rank, tokens)], 0.0)

    def ahead(self, flow: Flow, rank: int, tokens: int) -> list[tuple[Flow, int, float]]:
        """Whose tokens those are: by flow and class.

        All of the higher classes, all of its own flow, and of each other flow as much as its
        counter lets pass until then.
        """
        found: list[tuple[Flow, int, float]] = []
        for higher in range(rank):
            found += [
                (each, higher, float(each.queued_tokens[higher])) for each in self.backlogs[higher]
            ]
        mine = float(flow.queued_tokens[rank])
        until = self.served_if_it_waits(flow) + (mine + tokens) / flow.weight
        for other in self.backlogs[rank]:
            if other is not flow:
                passes = max(0.0, until - other.served) * other.weight
                found.append((other, rank, min(float(other.queued_tokens[rank]), passes)))
        if mine:
            found.append((flow, rank, mine))
        return found

    def _lift(self, flow: Flow) -> None:
        flow.served = self.served_if_it_waits(flow)

    def served_if_it_waits(self, flow: Flow) -> float:
        """Its counter once it waits: not below the least of those that wait."""
        if any(flow.queues):
            return flow.served
        others = [each.served for backlog in self.backlogs for each in backlog]
        return max(flow.served, min(others, default=self._last_served))


def servable(flow: Flow, rank: int, most: int, opened: Collection[Backend]) -> list[Ticket]:
    """Its oldest ones that one of these backends may serve, of the SEEN_MAX that it looks at."""
    found: list[Ticket] = []
    for ticket in islice(flow.queues[rank], SEEN_MAX):
        if is_servable(ticket, opened):
            found.append(ticket)
            if len(found) == most:
                break
    return found


def is_servable(ticket: Ticket, opened: Collection[Backend]) -> bool:
    """Whether one of these backends may serve it."""
    only, model, tried = ticket.only, ticket.ask.model, ticket.tried
    for backend in opened:
        if tried and backend in tried:
            continue
        if only is backend if only is not None else backend.serves(model):
            return True
    return False
