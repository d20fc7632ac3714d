"""What waits: by class, in a class by tenant, and for a tenant by arrival.

Classes are strict, but for the share that each lower one is granted. In a class the tenant that was
given the fewest tokens goes first (virtual token counters, Sheng et al., OSDI 2024). A tenant that
comes back after a pause starts beside the one that was given least of those that wait: it saves
nothing up. So two tenants that always have something waiting are given the same number of tokens,
but for the requests under way (the tests state the bound).
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import islice, takewhile
from typing import Final

from penstock.balancing.admission.queued_request import QueuedRequest
from penstock.balancing.admission.tenant_queue import TenantQueue
from penstock.balancing.backend import Backend

# How many requests of a tenant are seen in one dispatch.
SEEN_MAX: Final = 64
# A class is owed no more than this by those above it. Otherwise one that cannot go saves up tokens,
# and others of its class spend them at once.
OWED_MAX: Final = 65_536.0
# A generated token counts as two prompt tokens, as in VTC: it takes a place in a step of its own.
ANSWER_WEIGHT: Final = 2.0


Requests = OrderedDict[QueuedRequest, None]


class Queue:
    """The waiting requests of one pool. `shares`: what each class is granted at least, 0 to 1."""

    def __init__(self, shares: tuple[float, ...]) -> None:
        self.shares = shares
        self.tenants: dict[str, TenantQueue] = {}
        # By class and tenant, the oldest request first.
        self.backlogs: list[dict[TenantQueue, Requests]] = [{} for _ in shares]
        self._owed = [0.0] * len(shares)
        self._last_served = 0.0  # of the tenant that was last to have nothing waiting
        self._weights: Mapping[str, float] = {}
        self.waiting = 0

    def tenant(self, name: str) -> TenantQueue:
        """The queue of this name. The number of names is bounded by whoever gives them."""
        tenant = self.tenants.get(name)
        if tenant is None:
            tenant = self.tenants[name] = self.seen(name)
        return tenant

    def seen(self, name: str) -> TenantQueue:
        """The same for a dry run: one that is not there yet is made, and not kept."""
        known = self.tenants.get(name)
        return known or TenantQueue(name, len(self.shares), self._weights.get(name, 1.0))

    def waiting_of(self, name: str) -> int:
        """How many requests of this tenant wait."""
        tenant = self.tenants.get(name)
        return sum([len(each[tenant]) for each in self.backlogs if tenant in each])

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Take the weights of tenants, by name. Others have a weight of 1."""
        self._weights = weights
        for name, tenant in self.tenants.items():
            tenant.weight = weights.get(name, 1.0)

    def oldest(self, most: int) -> list[QueuedRequest]:
        """At most `most` waiting requests, class by class, each tenant's oldest first."""
        found: list[QueuedRequest] = []
        for backlog in self.backlogs:
            for requests in backlog.values():
                found += islice(requests, most - len(found))
        return found

    def reshape(self, shares: tuple[float, ...], ranks: list[int]) -> None:
        """Take other classes. `ranks`: for each old one, the class that its requests have now."""
        waiting = self.oldest(self.waiting)
        for request in waiting:
            self.remove(request)
            request.rank = ranks[request.rank]
        self.shares = shares
        self._owed = [0.0] * len(shares)
        self.backlogs = [{} for _ in shares]
        for tenant in self.tenants.values():
            tenant.reshape(len(shares))
        for request in waiting:
            self.add(request)

    def add(self, request: QueuedRequest) -> None:
        """It waits. One that was sent before goes before the others of its tenant."""
        tenant, rank, wait = request.tenant, request.rank, request.wait
        assert tenant is not None
        assert wait is not None
        tenant.served = self.served_if_it_waits(tenant)
        requests = self.backlogs[rank].setdefault(tenant, OrderedDict())
        requests[request] = None
        if request.again:
            requests.move_to_end(request, last=False)
        if request.again and not request.tried:  # a backend had no room for it
            others = islice(requests, 1, None)
            older = takewhile(lambda each: each.since_s < request.since_s, others)
            for each in reversed(list(older)):
                requests.move_to_end(each, last=False)
        tenant.queued_tokens[rank] += wait.tokens
        self.waiting += 1

    def remove(self, request: QueuedRequest) -> None:
        """It waits no more. Its `wait` goes on until its owner ends it."""
        tenant, rank, wait = request.tenant, request.rank, request.wait
        assert tenant is not None
        assert wait is not None
        requests = self.backlogs[rank][tenant]
        del requests[request]
        tenant.queued_tokens[rank] -= wait.tokens
        self.waiting -= 1
        if not requests:
            del self.backlogs[rank][tenant]
            self._last_served = tenant.served
            if not self.backlogs[rank]:
                self._owed[rank] = 0.0

    def sent(self, tenant: TenantQueue, rank: int, tokens: float) -> None:
        """A request is sent: lower classes that wait are owed their shares of its tokens, those of
        its answer included."""
        if not self.waiting:
            self._last_served = tenant.served = max(tenant.served, self._last_served)
            return
        tenant.served = self.served_if_it_waits(tenant)  # it saves nothing up by never waiting
        self._owed[rank] = max(0.0, self._owed[rank] - tokens)
        for lower in range(rank + 1, len(self.shares)):
            if self.backlogs[lower]:
                # A share of all tokens, not of those above.
                share = self.shares[lower] / (1.0 - self.shares[lower])
                self._owed[lower] = min(OWED_MAX, self._owed[lower] + share * tokens)

    def ranks(self) -> list[tuple[int, bool]]:
        """The classes in which something waits, in the order of their turns.

        With each: whether it has this turn because it is owed something. Then one request may go.
        After those all come by rank.
        """
        waiting = [rank for rank, backlog in enumerate(self.backlogs) if backlog]
        due = [(rank, True) for rank in waiting[1:] if self._is_due(rank)]
        return due + [(rank, False) for rank in waiting]

    def _is_due(self, rank: int) -> bool:
        """Whether a class is owed enough for one of its next requests."""
        owed = self._owed[rank]
        firsts = [next(iter(each)) for each in self.backlogs[rank].values()] if owed else []
        return any(owed >= min(_all_tokens(first), OWED_MAX) for first in firsts)

    def turns(self, rank: int) -> Iterator[QueuedRequest]:
        """The requests of a class in the order of their turns. Each counts as sent before the next
        one is chosen, so one tenant rarely has all turns."""
        tenants = list(self.backlogs[rank])[::-1]  # of equal ones who came last: it had nothing yet
        heap = [(tenant.served, number, 0) for number, tenant in enumerate(tenants)]
        heapify(heap)
        heads: dict[int, list[QueuedRequest]] = {}
        while heap:
            served, number, place = heappop(heap)
            if number not in heads:
                requests = self.backlogs[rank].get(tenants[number], ())
                heads[number] = list(islice(requests, SEEN_MAX))
            if place < len(heads[number]):
                request = heads[number][place]
                tokens = _all_tokens(request)
                if request.wait is not None:
                    yield request
                heappush(heap, (served + tokens / tenants[number].weight, number, place + 1))

    def ahead(
        self, tenant: TenantQueue, rank: int, tokens: int
    ) -> list[tuple[TenantQueue, int, float]]:
        """The tokens that are sent before a new request of this tenant and class, by tenant and
        class.

        All of the higher classes, all of its own tenant, and of each other one as much as its
        counter lets pass until then.
        """
        found: list[tuple[TenantQueue, int, float]] = []
        for higher in range(rank):
            found += [
                (each, higher, float(each.queued_tokens[higher])) for each in self.backlogs[higher]
            ]
        mine = float(tenant.queued_tokens[rank])
        new = tokens + ANSWER_WEIGHT * tenant.mean_tokens
        charge = self._queued_charge(tenant, rank) + new
        until = self.served_if_it_waits(tenant) + charge / tenant.weight
        for other in self.backlogs[rank]:
            if other is not tenant:
                passes = max(0.0, until - other.served) * other.weight
                part = min(1.0, passes / max(1.0, self._queued_charge(other, rank)))
                found.append((other, rank, part * other.queued_tokens[rank]))
        if mine:
            found.append((tenant, rank, mine))
        return found

    def _queued_charge(self, tenant: TenantQueue, rank: int) -> float:
        """About what the waiting requests of a tenant will be charged for."""
        answers = len(self.backlogs[rank].get(tenant, ()))
        return tenant.queued_tokens[rank] + ANSWER_WEIGHT * answers * tenant.mean_tokens

    def ahead_tokens(self, tenant: TenantQueue, rank: int, tokens: int) -> float:
        """All of those tokens."""
        return sum([before for _, _, before in self.ahead(tenant, rank, tokens)], 0.0)

    def served_if_it_waits(self, tenant: TenantQueue) -> float:
        """Its counter once it waits: not below the least of those that wait."""
        if any(tenant.queued_tokens):
            return tenant.served
        others = [each.served for backlog in self.backlogs for each in backlog]
        return max(tenant.served, min(others, default=self._last_served))


def _all_tokens(request: QueuedRequest) -> float:
    """What it is charged for: its prompt and the answer that is expected."""
    wait = request.wait
    return wait.tokens + ANSWER_WEIGHT * wait.answer_tokens if wait is not None else 0.0


def is_servable(request: QueuedRequest, backends: Collection[Backend]) -> bool:
    """Whether one of these backends may serve it."""
    wait = request.wait
    only, model, tried = wait.only if wait is not None else None, request.ask.model, request.tried
    for backend in backends:
        if tried and backend in tried:
            continue
        if only is backend if only is not None else backend.serves(model):
            return True
    return False
