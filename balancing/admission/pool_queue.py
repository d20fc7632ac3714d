"""Admission for one pool: which request is sent, which waits, and what its leases count for."""

from collections.abc import Callable, Sequence
from itertools import islice
from random import Random
from typing import Final

from penstock.balancing.admission.capacity import Capacity, Others
from penstock.balancing.admission.large_requests import LargeRequests
from penstock.balancing.admission.queue import ANSWER_WEIGHT, Queue
from penstock.balancing.admission.queued_request import (
    Charge,
    QueuedRequest,
    TooLate,
    Wait,
    WaitReason,
)
from penstock.balancing.admission.spillover import lighter, spillover
from penstock.balancing.admission.tenant_queue import ASKED_TAU_S, Fading, TenantQueue
from penstock.balancing.admission.ttft import LATE, Ttft, learn
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.fleet import Pool
from penstock.balancing.gate import Look
from penstock.balancing.lease import Lease
from penstock.balancing.prefill_queue import Occupancy, QueuedPrompts

# How often the streams are looked at while requests wait.
SAMPLE_S: Final = 0.1
# The most requests that one wake gives up. To tell a thousand clients took 94 ms, in which the
# event loop passes no stream on.
GIVEN_UP_MAX: Final = 64
# How many of a tenant's requests of a class one sweep checks. The next sweep goes on behind them.
SEEN_MAX: Final = 128
# A backend is kept for the next request if its prompt takes more than KEEP_SHARE of a cache and
# finds no room: at once beside other tenants, else after KEEP_AFTER_S. Otherwise small requests,
# which find room sooner, would pass it for as long as they come. A backend is kept for at most
# KEPT_S, and for KEPT_ALONE_S if no other one serves the model.
KEEP_AFTER_S: Final = 1.0
KEEP_SHARE: Final = 1.0 / 8.0
KEPT_S: Final = 15.0
KEPT_ALONE_S: Final = 5.0


class PoolQueue(Occupancy):
    """One pool: its queue, the capacity of its backends, and what the waits teach."""

    def __init__(
        self,
        name: str,
        shares: tuple[float, ...],
        rng: Random,
        on_change: Callable[[], None],
        *,
        dry: bool = False,
    ) -> None:
        """`shares`: the least share of each class, the highest first. `dry`: no backend tells it
        of its leases."""
        self.name = name
        self.queue = Queue(shares)
        self.ttft = Ttft(len(shares), rng)
        self.capacities: dict[Backend, Capacity] = {}
        self.large = LargeRequests(self.capacities)
        self.members: tuple[Backend, ...] = ()
        self.parks = False  # what waits is parked: no backend can serve
        # Tenants whose requests found no room, while others had no try.
        self.rests: set[TenantQueue] = set()
        self._sweeps = 0  # for what is too late
        self.swept = 0  # how many waiting requests the current sweep has checked
        self._max_requests: int | None = None  # of the whole pool
        self._changed = on_change
        self._watches = not dry
        self._asked = [Fading(ASKED_TAU_S) for _ in shares]  # by class, of all tenants
        self._kept: dict[Backend, tuple[QueuedRequest, float]] = {}  # for which request, until when
        self._sampled_s = 0.0

    # The pool ------------------------------------------------------------------------------------

    def capacity_of(self, backend: Backend) -> Capacity:
        capacity = self.capacities.get(backend)
        if capacity is None:
            capacity = self.capacities[backend] = Capacity(backend)
            if self._watches:
                backend.occupancy = self
        return capacity

    def follow(self, pool: Pool | None) -> None:
        """This is the pool now. None: it is gone. Backends are forgotten without requests."""
        self.members = pool.backends if pool is not None else ()
        self.large.members = self.members
        self._max_requests = pool.max_requests if pool is not None else None
        for backend in self.members:
            self.capacity_of(backend)
        members = set(self.members)  # there may be thousands
        for backend, capacity in list(self.capacities.items()):
            if backend not in members and not capacity.charges and not capacity.wanted:
                del self.capacities[backend]
                backend.occupancy = None

    def reshape(self, shares: tuple[float, ...], ranks: list[int]) -> None:
        """Take other classes. `ranks`: for each old one, the class that its requests have now."""
        self.queue.reshape(shares, ranks)
        self.ttft.reshape(len(shares))
        self._asked = [Fading(ASKED_TAU_S) for _ in shares]
        for capacity in self.capacities.values():
            for charge in capacity.charges.values():
                charge.rank = ranks[charge.rank]

    @property
    def able(self) -> list[Backend]:
        """The backends that can serve."""
        return [backend for backend in self.members if backend.can_serve]

    @property
    def full(self) -> bool:
        """Whether the pool has all the requests that it may have."""
        if self._max_requests is None:
            return False
        return sum([each.own.requests for each in self.members]) >= self._max_requests

    def opened(self, now_s: float) -> list[Backend]:
        """The backends that take a prompt now."""
        if self.full:
            return []
        return [each for each in self.able if self.capacities[each].opens(now_s)]

    # What comes ----------------------------------------------------------------------------------

    def comes(self, request: QueuedRequest, ask: Ask, now_s: float) -> None:
        """A request has come: count its tokens as demand of its tenant."""
        tenant = self.queue.seen(request.name) if request.dry else self.queue.tenant(request.name)
        request.tenant = tenant
        if not request.dry and ask.engine:
            tokens = ask.prompt_tokens + tenant.expect(ask)
            tenant.asked[request.rank].add(tokens, now_s)
            self._asked[request.rank].add(tokens, now_s)

    def shortage(
        self, backend: Backend, request: QueuedRequest, ask: Ask, now_s: float, *, due: bool = False
    ) -> WaitReason | None:
        """What this backend lacks for the request now. None: it has room.

        `due`: its class is owed its share, so it leaves nothing to higher classes.
        """
        if self.full:
            return WaitReason.REQUESTS
        capacity = self.capacity_of(backend)
        reason = capacity.shortage(request, ask, now_s)
        if reason is not None or not ask.engine:
            return reason
        if self._is_kept(backend, request, now_s):
            return WaitReason.TURN
        tenant = request.tenant
        assert tenant is not None
        concerns = self.large.concerns(capacity, ask)
        if not concerns and not ask.generates:
            return None
        others = self._others(tenant, request.rank, now_s, due=due)
        if not capacity.spares(tenant, ask, others, now_s):
            return WaitReason.SHARE
        return self.large.shortage(capacity, request, ask, others, now_s) if concerns else None

    def _others(self, tenant: TenantQueue, rank: int, now_s: float, *, due: bool) -> Others:
        mine = tenant.asked[rank].of(now_s)
        alike = self._asked[rank].of(now_s) - mine
        higher = 0.0 if due else sum([each.of(now_s) for each in self._asked[:rank]])
        return Others(higher, alike, mine, len(self.members))

    def find(
        self, request: QueuedRequest, look: Look, now_s: float, *, due: bool = False
    ) -> Backend | TooLate | None:
        """The backend that a request is sent to now: the choice, or one that costs little more.

        None: it waits on.
        """
        look = lighter(look, self.capacity_of, now_s)
        chosen: Backend | None = look.chosen
        reason = self.shortage(look.chosen, request, look.ask, now_s, due=due)
        if not request.dry:
            self._want(request, look.chosen)
            request.reason = reason or request.reason
            if reason is WaitReason.KV_CACHE:
                self.capacity_of(look.chosen).short_s = now_s
        if reason is not None:

            def has_room(backend: Backend) -> bool:
                return self.shortage(backend, request, look.ask, now_s, due=due) is None

            chosen = spillover(look, request, reason, has_room, now_s)
        if chosen is None:
            return None
        return self.ttft.too_late(request, chosen, now_s) or chosen

    def wait(self, request: QueuedRequest, look: Look, now_s: float) -> TooLate | None:
        """Let it wait. Returns the refusal if its first token would come too late."""
        uncached = look.ask.prompt_tokens - look.chosen.cache.cached_tokens(look.ask)
        tokens = max(1, int(uncached * look.ask.likely))
        refused = self._predict(request, tokens, look.fit, now_s)
        if request.wait is not None:
            request.wait.only = look.chosen if look.bound else None
            self._add(request, now_s)
            self._want(request, look.chosen)
        return refused

    def park(self, request: QueuedRequest, now_s: float) -> TooLate | None:
        """Let it wait until a backend can serve. Returns the refusal if too much waits already."""
        refused = self._predict(request, request.ask.prompt_tokens, self.members, now_s)
        if request.wait is not None:
            request.wait.parked_s, request.reason = now_s, WaitReason.BACKEND
            self._add(request, now_s)
        return refused

    def _predict(
        self, request: QueuedRequest, tokens: int, backends: Sequence[Backend], now_s: float
    ) -> TooLate | None:
        """Predict the first token of a request that must wait, and give it a `wait`. Returns the
        refusal if that is too late."""
        tenant = request.tenant
        assert tenant is not None
        self.ttft.look(now_s)
        ahead = 0.0  # the client of one that was sent before has waited already
        if not request.again:
            ahead = self.queue.ahead_tokens(tenant, request.rank, tokens)
        refused = self.ttft.predict(request, tokens, ahead, backends, now_s)
        if refused is None:
            request.wait = Wait(self.name, tokens, tenant.expect(request.ask))
        return refused

    def look_for_backends(self, now_s: float, *, parks: bool) -> None:
        """Begin to park what waits if no backend can serve, or end that."""
        parks = parks and not self.able
        if parks is self.parks:
            return
        self.ttft.look(now_s)
        self.parks, self.swept = parks, 0
        for request in self.queue.oldest(self.queue.waiting):
            if not parks:
                request.unpark(now_s)
            elif request.wait is not None and request.wait.parked_s is None:
                request.wait.parked_s, request.reason = now_s, WaitReason.BACKEND
        self.ttft.busy = self.queue.waiting > 0 and not parks

    # What waits ----------------------------------------------------------------------------------

    def _add(self, request: QueuedRequest, now_s: float) -> None:
        if request.dry:
            return
        self.ttft.look(now_s)
        if not self.queue.waiting:
            self._sampled_s = now_s
        if self.parks and request.wait is not None:  # a backend is back, if only for a moment
            request.wait.parked_s = now_s
        self.queue.add(request)
        self.ttft.busy = not self.parks

    def leave(self, request: QueuedRequest, now_s: float) -> None:
        """It waits no more: it is sent, refused, or its client has left."""
        self.ttft.look(now_s)
        self._want(request, None)
        for backend, (kept, _) in list(self._kept.items()):
            if kept is request:
                del self._kept[backend]
        self.queue.remove(request)
        request.unpark(now_s)
        request.wait = None
        self.ttft.busy = self.queue.waiting > 0 and not self.parks

    def _want(self, request: QueuedRequest, backend: Backend | None) -> None:
        """A waiting request waits for this backend now."""
        wait = request.wait
        if wait is None or request.dry or wait.wanted is backend:
            return
        if wait.wanted is not None and wait.wanted in self.capacities:
            self.capacities[wait.wanted].wanted -= 1
        if backend is not None:
            self.capacity_of(backend).wanted += 1
        wait.wanted = backend

    def keep(self, request: QueuedRequest, now_s: float) -> bool:
        """Keep a backend for the next request, which has found no room, if it needs one. Returns
        whether it has or had one: then the request behind it is next."""
        wait, ask = request.wait, request.ask
        if wait is None or wait.kept_before:
            return wait is not None
        alone = len(self.queue.backlogs[request.rank]) == 1
        if alone and request.waited_s(now_s) < KEEP_AFTER_S:
            return False
        if request.reason is not WaitReason.KV_CACHE:
            return False
        self._kept = {each: kept for each, kept in self._kept.items() if now_s < kept[1]}
        able = [each for each in self.able if each.serves(ask.model)]
        places = [self.capacity_of(each) for each in able if each not in self._kept]
        if not places or 2 * len(self._kept) >= max(2, len(able)):
            return False
        # The one that comes free first.
        place = max(places, key=lambda each: each.back_tokens(KEPT_ALONE_S, now_s))
        most_s = KEPT_S if len(able) > 1 else KEPT_ALONE_S
        capacity, back = place.kv.capacity(now_s), place.back_tokens(most_s, now_s)
        if KEEP_SHARE * capacity < ask.prompt_tokens <= back:
            wait.kept_before = True
            self._kept[place.backend] = request, now_s + most_s
        return wait.kept_before

    def _is_kept(self, backend: Backend, request: QueuedRequest, now_s: float) -> bool:
        """Whether this backend is kept for another request of its class or a higher one."""
        kept = self._kept.get(backend)
        if kept is None or now_s >= kept[1]:
            return False
        return kept[0] is not request and request.rank >= kept[0].rank

    def over(self, park_s: float, now_s: float) -> list[tuple[QueuedRequest, TooLate | None]]:
        """Remove some requests that are past their deadline, with the refusal, or that were parked
        for longer than `park_s`, without one."""
        found: list[tuple[QueuedRequest, TooLate | None]] = []
        self._sweeps += 1
        for backlog in self.queue.backlogs:
            for requests in list(backlog.values()):
                begin = self._sweeps * SEEN_MAX % max(SEEN_MAX, len(requests))
                for request in list(islice(requests, begin, begin + SEEN_MAX)):
                    if len(found) == GIVEN_UP_MAX:
                        return found
                    wait, waited_s = request.wait, request.waited_s(now_s)
                    assert wait is not None
                    if waited_s > LATE * request.deadline_s:
                        refused: TooLate | None = self.ttft.refuse(request, waited_s)
                    elif wait.parked_s is not None and now_s - wait.parked_s > park_s:
                        refused = None
                    else:
                        continue
                    self.leave(request, now_s)
                    found.append((request, refused))
        return found

    # What is sent --------------------------------------------------------------------------------

    def sent(self, request: QueuedRequest, lease: Lease, now_s: float) -> None:
        """A request is sent. Charge its tenant for its expected tokens; `ended` corrects that."""
        tenant = request.tenant
        assert tenant is not None
        capacity = self.capacity_of(lease.backend)
        charge = Charge(request, tenant, lease)
        if self.large.concerns(capacity, lease.ask):
            self.large.sent(capacity, charge, lease.ask, now_s)
        capacity.add(lease, charge)
        tokens = lease.queued_tokens + ANSWER_WEIGHT * charge.answer_tokens
        self.queue.sent(tenant, charge.rank, tokens)
        charge.add(tokens, now_s)

    def prefilled(self, prompts: QueuedPrompts, now_s: float) -> None:
        assert isinstance(prompts, Lease)
        charge = self.capacities[prompts.backend].prefilled(prompts)
        if self.queue.waiting:
            self._changed()
        if charge is not None:
            tokens = prompts.ask.prompt_tokens - prompts.cached_tokens
            self.ttft.count(tokens, charge.rank, now_s)
            learn(charge.tenant, charge.raw_s, tokens, now_s - charge.since_s)
            charge.raw_s = 0.0

    def ended(self, prompts: QueuedPrompts, now_s: float) -> None:
        assert isinstance(prompts, Lease)
        charge = self.capacities[prompts.backend].remove(prompts)
        if self.queue.waiting:
            self._changed()
        if charge is None:
            return
        ask, tenant, generated = prompts.ask, charge.tenant, prompts.generated_tokens
        if ask.generates and (prompts.whole or ask.stream):
            # One that was cut tells only that it would have been longer still.
            if prompts.whole or generated > charge.answer_tokens > 0.0:
                tenant.answered(max(1, generated // (ask.prompts * ask.choices)))
            tenant.answers_given.add(min(charge.answer_tokens, float(generated)), now_s)
        taken = prompts.taken_tokens + ANSWER_WEIGHT * generated
        if not prompts.whole and not ask.stream:
            unseen = ANSWER_WEIGHT * prompts.unseen_tokens(now_s)
            taken = max(taken, prompts.taken_tokens + unseen)
        charge.add(taken - charge.charged_tokens, now_s)

    def samples(self, now_s: float) -> bool:
        """Charge tenants for answers that are longer than expected. False: less than SAMPLE_S ago
        it did so."""
        if now_s - self._sampled_s < SAMPLE_S:
            return False
        self._sampled_s = now_s
        self.ttft.look(now_s)
        for capacity in self.capacities.values():
            capacity.sample(now_s)
            for lease, charge in capacity.charges.items():
                taken = lease.taken_tokens + ANSWER_WEIGHT * lease.generated_tokens
                if taken > charge.charged_tokens:
                    charge.add(taken - charge.charged_tokens, now_s)
        return True
