"""Admission: a request is sent at once, waits in the queue of its pool, or is refused.

When nothing waits and the choice has room, this costs a few comparisons more than the choice.
Nothing here has a clock. Whoever has one calls `wake` soon after `on_change` was called, and every
TICK_S while something waits: prompts of plain answers leave an engine's queue by the clock alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final

from penstock.balancing.admission.dispatch import (
    STAYS_S,
    Dispatch,
    Told,
    must_yield,
    parked_on,
    sweep,
)
from penstock.balancing.admission.dry_run import Fate, Forecast, dry_copy, forecast, forecast_parked
from penstock.balancing.admission.pool_queue import PoolQueue
from penstock.balancing.admission.queue import is_servable
from penstock.balancing.admission.queued_request import (
    Outcome,
    QueuedRequest,
    TooLate,
    WaitReason,
)
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.computed_prompts import OverContext
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.gate import Gate, Look, NoBackend
from penstock.balancing.lease import Lease

TICK_S: Final = 0.05
# The most requests that one wake sends where nobody need wait any more.
SEND_ALL_MAX: Final = 64
# The most requests that one wake tries. The event loop passes no stream on meanwhile, so the next
# turn of the loop tries the other pools.
TRIES_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Rules:
    """What a configuration says.

    `classes`: their names, the highest first. `shares`: the least share of each. `weights`: those
    of tenants, by name; 1 for others. `park_s`: how long a request waits while no backend of its
    pool can serve.
    """

    enabled: bool = False  # False: each request is sent at once
    shares: tuple[float, ...] = (0.0,)
    classes: tuple[str, ...] = ("",)
    weights: Mapping[str, float] = field(default_factory=dict)
    park_s: float = 0.0


class Admission:
    """The queues of all pools, before one gate."""

    def __init__(
        self,
        gate: Gate,
        fleet: Callable[[], Fleet],
        rng: Random,
        on_change: Callable[[], None],
        rules: Rules,
    ) -> None:
        """`on_change`: what waits may have room now. It must not call back at once."""
        self._gate = gate
        self._fleet = fleet
        self._rng = rng
        self._on_change = on_change
        self._left: list[str] = []  # pools that the last wake had no tries for
        self.pools: dict[str, PoolQueue] = {}
        self.rules = rules
        self.enabled = rules.enabled  # read for each request

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return sum([pool.queue.waiting for pool in self.pools.values()])

    def queued(self, rank: int) -> tuple[int, int]:
        """How many requests of a class wait, and their tokens still to prefill."""
        requests = tokens = 0
        for pool in self.pools.values():
            backlogs = pool.queue.backlogs
            backlog = backlogs[rank] if rank < len(backlogs) else {}
            requests += sum([len(each) for each in backlog.values()])
            tokens += sum([tenant.queued_tokens[rank] for tenant in backlog])
        return requests, tokens

    def parked(self, pool: str) -> tuple[int, int]:
        """How many requests wait for a backend of this pool, and their prompt tokens."""
        found = self.pools.get(pool)
        if found is None or not found.parks:
            return 0, 0
        queue = found.queue
        tokens = [each.queued_tokens[rank] for rank, of in enumerate(queue.backlogs) for each in of]
        return queue.waiting, sum(tokens)

    # Requests ------------------------------------------------------------------------------------

    def enter(self, request: QueuedRequest, now_s: float) -> Lease | TooLate | None:
        """The lease, if it is sent at once, or its refusal. None: it waits, and `ready` will be
        called.

        Raises what `Gate.choose` raises.
        """
        request.rank = min(request.rank, len(self.rules.shares) - 1)  # a reload may have fewer
        if not self.enabled:
            return self._gate.choose(request.ask, now_s, request.tried, retry=request.retry)
        try:
            look = self._gate.look(request.ask, now_s, request.tried)
        except NoBackend:
            pool = self._parks(request)
            if pool is None:
                raise
            pool.comes(request, request.ask, now_s)
            pool.look_for_backends(now_s, parks=True)
            return pool.park(request, now_s)
        if look.asks_only:
            return self._gate.place(look, now_s, retry=request.retry)
        if not look.pool.admission:
            return self._gate.send(look, now_s, retry=request.retry)
        pool = self._pool(look.pool)
        pool.comes(request, look.ask, now_s)
        if not pool.queue.waiting or not look.ask.engine:
            reason = pool.shortage(look.chosen, request, look.ask, now_s)
            if reason is None:
                return self._send(pool, request, look, look.chosen, now_s)
            request.reason = reason
        return pool.wait(request, look, now_s)

    def leave(self, request: QueuedRequest, now_s: float) -> None:
        """Its client has left while it waited. Does nothing if it does not wait."""
        if request.wait is not None:
            self.pools[request.wait.pool].leave(request, now_s)
            self._on_change()

    def _send(
        self, pool: PoolQueue, request: QueuedRequest, look: Look, chosen: Backend, now_s: float
    ) -> Lease:
        if chosen is not look.chosen:
            look = Look(look.pool, look.fit, look.ask, chosen)
        lease = self._gate.place(look, now_s, retry=request.retry)
        try:
            pool.sent(request, lease, now_s)
        except BaseException:
            lease.end(now_s)
            raise
        return lease

    def _pool(self, pool: Pool, *, dry: bool = False) -> PoolQueue:
        """What waits for a pool. `dry`: what is not there yet is made, and not kept."""
        found = self.pools.get(pool.name)
        if found is None:
            rng, on_change = (Random(0), _nothing) if dry else (self._rng, self._on_change)
            found = PoolQueue(pool.name, self.rules.shares, rng, on_change, dry=dry)
            found.queue.weigh(self.rules.weights)
            found.follow(pool)
            if not dry:
                self.pools[pool.name] = found
        return found

    def _parks(self, request: QueuedRequest) -> PoolQueue | None:
        """The pool whose backends a request waits for that none can serve now, if it waits."""
        pool = self._fleet().resolve(request.ask)[0]
        parks = self.enabled and pool.admission and self.rules.park_s > 0.0
        if not parks or request.ask.response_id is not None:
            return None
        if request.elsewhere():
            return None
        found = self._pool(pool, dry=request.dry)
        for backend in found.members:
            if backend.can_serve and backend not in request.tried:
                return None
        return found

    # What waits ----------------------------------------------------------------------------------

    def wake(self, now_s: float, outcomes: list[Told]) -> None:
        """Send what waits and has room now, and refuse what is too late.

        Adds to `outcomes`. Whoever calls it tells each request by `ready`, also after an exception.
        """
        tries = 0
        names = self._left or list(self.pools)
        self._left = []
        for number, name in enumerate(names):
            pool = self.pools.get(name)
            if pool is None or not pool.queue.waiting:
                continue
            if tries >= TRIES_MAX:
                self._left = names[number:]
                self._on_change()
                return
            tries += self._wake(pool, now_s, outcomes)

    def _wake(self, pool: PoolQueue, now_s: float, outcomes: list[Told]) -> int:
        """Dispatch one pool. Returns the most requests that it may have tried."""
        fleet = self._fleet()
        of_fleet = [each for each in fleet.pools if each.name == pool.name]
        waits = bool(of_fleet) and self.enabled and of_fleet[0].admission
        pool.look_for_backends(now_s, parks=waits and self.rules.park_s > 0.0)
        for backend in pool.members:
            backend.advance(now_s)
        if pool.samples(now_s):
            for request, refused in pool.over(self.rules.park_s, now_s):
                outcomes.append((request, refused if refused is not None else NoBackend()))
            for request in sweep(pool, fleet, now_s):
                outcome = self._try(pool, now_s, request)
                if outcome is not None:
                    outcomes.append((request, outcome))
        if not waits or not (pool.able or pool.parks):
            self._send_all(pool, now_s, outcomes)
            return SEND_ALL_MAX
        dispatch = Dispatch(pool, partial(self._try, pool, now_s), outcomes, now_s)
        dispatch.run()
        if pool.queue.waiting and (dispatch.unseen or dispatch.sent) and pool.opened(now_s):
            self._on_change()
        return TRIES_MAX // 4

    def _try(
        self, pool: PoolQueue, now_s: float, request: QueuedRequest, due: bool = False
    ) -> Outcome | None:
        """Choose a backend again. None: the request keeps waiting. `due`: its class is owed its
        share."""
        try:
            return self._look_again(pool, now_s, request, due=due)
        except Exception as error:  # noqa: BLE001 - one faulty request must not stop the others
            wait = request.wait
            if isinstance(error, NoBackend) and wait is not None and wait.parked_s is not None:
                return parked_on(request, now_s)
            if wait is not None:
                pool.leave(request, now_s)
            return error

    def _look_again(
        self, pool: PoolQueue, now_s: float, request: QueuedRequest, *, due: bool
    ) -> Outcome | None:
        look = self._gate.look(request.ask, now_s, request.tried)
        if look.pool.name != pool.name:
            if self._moves(pool, request, now_s):
                pool.leave(request, now_s)
                return self.enter(request, now_s)
            if request.wait is not None and request.wait.parked_s is not None:
                return None
            look = self._gate.look(request.ask, now_s, request.tried, only_pool=pool.name)
        chosen = pool.find(request, look, now_s, due=due)
        if chosen is None:
            return None
        pool.leave(request, now_s)
        if isinstance(chosen, TooLate):
            return chosen
        return self._send(pool, request, look, chosen, now_s)

    def _moves(self, pool: PoolQueue, request: QueuedRequest, now_s: float) -> bool:
        """Whether a request moves to the other pool that the gate chose. A request that would be
        refused there stays, unless its own pool cannot serve it any more."""
        wait = request.wait
        assert wait is not None
        if wait.parked_s is None and not is_servable(request, pool.able):
            return True
        if now_s < wait.stays_s:
            return False
        if self.would_refuse(request, request.ask, now_s - request.waited_s(now_s), now_s):
            wait.stays_s = now_s + STAYS_S
            return False
        return True

    def _send_all(self, pool: PoolQueue, now_s: float, outcomes: list[Told]) -> None:
        """Nobody need wait: a reload has turned admission off, or the pool has no backends. Takes
        several wakes."""
        for request in pool.queue.oldest(SEND_ALL_MAX):
            pool.leave(request, now_s)
            try:
                outcome: Outcome | None = self.enter(request, now_s)
            except Exception as error:  # noqa: BLE001 - one faulty request must not stop the others
                outcome = error
            if outcome is not None:
                outcomes.append((request, outcome))
        if pool.queue.waiting:
            self._on_change()

    def follow(self, rules: Rules) -> None:
        """Take new rules, and forget what is no longer in the fleet."""
        before = self.rules
        if (rules.classes, rules.shares) != (before.classes, before.shares):
            last = len(rules.classes) - 1
            ranks = [
                rules.classes.index(name) if name in rules.classes else last
                for name in before.classes
            ]
            for found in self.pools.values():
                found.reshape(rules.shares, ranks)
        self.rules, self.enabled = rules, rules.enabled
        pools = {pool.name: pool for pool in self._fleet().pools}
        for name, found in list(self.pools.items()):
            found.queue.weigh(rules.weights)
            found.follow(pools.get(name))
            if name not in pools and not found.capacities and not found.queue.waiting:
                del self.pools[name]
        self._on_change()

    # Dry runs ------------------------------------------------------------------------------------

    def forecast(self, request: QueuedRequest, now_s: float) -> Forecast:
        """What `enter` would do with a dry request. Keeps and counts nothing.

        Raises what `Gate.look` raises.
        """
        try:
            look = self._gate.look(request.ask, now_s, dry=True)
        except NoBackend:
            pool = self._parks(request)
            if pool is None:
                raise
            pool.comes(request, request.ask, now_s)
            return forecast_parked(pool, request, self.rules.park_s, now_s)
        if not self.enabled or not look.pool.admission:
            return Forecast(Fate.AT_ONCE, look.chosen)
        pool = self._pool(look.pool, dry=True)
        pool.comes(request, look.ask, now_s)
        return forecast(pool, request, look, now_s)

    def takes_now(self, request: QueuedRequest, look: Look, now_s: float) -> bool:
        """Whether `enter` would send a dry request to the chosen backend at once."""
        if not look.pool.admission:
            return True
        pool = self._pool(look.pool, dry=True)
        if pool.queue.waiting:
            return False
        pool.comes(request, look.ask, now_s)
        return pool.shortage(look.chosen, request, look.ask, now_s) is None

    def would_refuse(self, request: QueuedRequest, ask: Ask, since_s: float, now_s: float) -> bool:
        """Whether a new request like this one, with this `ask`, would be refused. `since_s`: when
        its wait would have begun."""
        try:
            found = self.forecast(dry_copy(request, ask, since_s), now_s)
        except (LookupError, OverContext):
            return False
        return found.fate is Fate.REFUSE

    def reason(self, request: QueuedRequest, now_s: float) -> tuple[Backend | None, WaitReason]:
        """What a waiting request waits for, and at which backend. Changes nothing."""
        wait = request.wait
        try:
            look = self._gate.look(request.ask, now_s, request.tried, dry=True)
        except (LookupError, OverContext):  # the next wake tells its client
            return None, WaitReason.BACKEND
        if wait is None or look.pool.name != wait.pool:
            return look.chosen, WaitReason.TURN  # it goes there when it is looked at
        pool = self.pools[wait.pool]
        reason = pool.shortage(look.chosen, request, look.ask, now_s)
        if reason is None:
            yields = must_yield(pool, request.rank, pool.opened(now_s), now_s)
            reason = WaitReason.CLASS if yields else WaitReason.TURN
        return look.chosen, reason


def _nothing() -> None:
    """Nobody waits there."""
