"""The gate chooses the backend of every request and reserves on it.

A choice has two halves. `look` says where a request would go, and changes nothing. `place` sends
it there. Both are called in one moment: no other request comes between. What waits is looked at
again (`admission`).
"""

from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import NamedTuple

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.computed_prompts import LARGE_TOKENS, ComputedPrompts
from penstock.balancing.explain import Candidate, candidates
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.lease import Lease, Reason
from penstock.balancing.outliers.blame import Blame
from penstock.balancing.outliers.failures import BUSY_S, charge_bare, charge_refusal
from penstock.balancing.outliers.penalties import Cause
from penstock.balancing.response_owners import ResponseOwners, Searches
from penstock.balancing.retry_budget import RetryBudget


class NoBackend(LookupError):
    """Nothing can serve this request now."""


class Full(Exception):
    """The pool, or each of its backends, has all the requests that it may have.

    `busy_s`: for how long backends have said so themselves, the longest of these times.
    """

    def __init__(self, busy_s: float) -> None:
        super().__init__()
        self.busy_s = busy_s


class OwnerAway(NoBackend):
    """The backend that made the response which is asked for cannot be asked now."""


class UnknownResponse(LookupError):
    """The stored response that it refers to is another tenant's, or was found nowhere just now."""


class Look:
    """Where a request would go now. It is valid for this moment only.

    `fit`: it could go to each of them. `bound`: only the chosen one holds what is asked for.
    `aimed`: and others would have served it without that. (A named tuple takes ten times as long.)
    """

    __slots__ = ("aimed", "ask", "bound", "chosen", "fit", "pool")

    def __init__(
        self,
        pool: Pool,
        fit: list[Backend],
        ask: Ask,
        chosen: Backend,
        *,
        bound: bool = False,
        aimed: bool = False,
    ) -> None:
        self.pool = pool
        self.fit = fit
        self.ask = ask
        self.chosen = chosen
        self.bound = bound
        self.aimed = aimed

    @property
    def asks_only(self) -> bool:
        """Whether it asks for a stored response. That may end one, so no limit holds it up."""
        return self.ask.response_id is not None and not self.ask.engine


class Choice(NamedTuple):
    """A dry run of a choice: the pool, the backends of which one would be drawn, and why.

    `chosen` is empty if no backend can take the request, or if the policy draws at random.
    """

    pool: str | None
    chosen: list[str]
    reason: Reason | None
    candidates: list[Candidate]


class Gate:
    """Admits requests to the fleet that `fleet()` returns at that moment."""

    def __init__(self, fleet: Callable[[], Fleet], rng: Random) -> None:
        self._fleet = fleet
        self._rng = rng
        self._budgets: dict[str, RetryBudget] = {}  # by pool
        self._blame = Blame()
        self._bares = Blame()  # apart: an answer without a token excuses no failure
        self.computed_prompts = ComputedPrompts()
        self._searches = Searches()
        self.owners = ResponseOwners()

    def choose(
        self, ask: Ask, now_s: float, tried: Collection[Backend] = (), *, retry: bool = False
    ) -> Lease:
        """Choose a backend and reserve the tokens on it.

        Raises NoBackend, OwnerAway, UnknownResponse, UnknownModel, OverContext, Full.

        `tried` are backends that already failed this request; `retry`: an engine may have
        worked on it there.
        """
        return self.send(self.look(ask, now_s, tried), now_s, retry=retry)

    def send(self, look: Look, now_s: float, *, retry: bool = False) -> Lease:
        """Send the request there, or to one that may have another request. Raises Full."""
        closed = look.pool.full or look.chosen.is_closed(look.ask.client, now_s)
        if closed and not look.asks_only:
            look = self._elsewhere(look, now_s)
        return self.place(look, now_s, retry=retry)

    def look(
        self,
        ask: Ask,
        now_s: float,
        tried: Collection[Backend] = (),
        *,
        dry: bool = False,
        only_pool: str | None = None,
    ) -> Look:
        """Where the request would go now. Raises NoBackend, OwnerAway, UnknownResponse,
        UnknownModel, OverContext. `dry`: the policy only says so, and draws nothing. `only_pool`:
        it may go to no other one.
        """
        pools = self._fleet().resolve(ask)
        if only_pool is not None:
            pools = [each for each in pools if each.name == only_pool]
        response_id = ask.response_id
        if response_id is not None:
            owner = self._owner(pools, ask, response_id, now_s)
            if owner is not None and owner not in tried:
                if not (owner.can_serve or owner.may_finish(ask)):
                    raise OwnerAway
                owner.advance(now_s)
                pool = self._fleet().pool(owner.pool)
                assert pool is not None
                ask = self._weighed(ask, pool)
                # Where only it can serve the model, nobody else shows its speed. But how much of a
                # stored conversation it still has is not known.
                tokens = self.owners.tokens_of(response_id, ask.tenant, now_s)
                aimed = tokens > 0 or bool(self._peers(owner, ask.model))
                return Look(pool, [owner], ask, owner, bound=True, aimed=aimed)
        pool, fit, ask = self.among(pools, ask, now_s, tried)
        chosen = fit[0]
        if dry:
            chosen = next(iter(pool.policy.explain(fit, ask, now_s).best), chosen)
        elif len(fit) > 1:
            chosen = pool.policy.choose(fit, ask, now_s, self._rng)
        return Look(pool, fit, ask, chosen)

    def place(self, look: Look, now_s: float, *, retry: bool = False) -> Lease:
        """Send the request there: reserve, and tell the policy."""
        pool, fit, ask, chosen = look.pool, look.fit, look.ask, look.chosen
        if chosen.left_alone.until_s and ask.engine:
            chosen.left_alone.tried(ask.client, now_s, BUSY_S)
        if look.bound:
            reason, aimed = Reason.AFFINITY, look.aimed
            return Lease(chosen, ask, now_s, reason, bound=True, aimed=aimed, retry=retry)
        alone = len(fit) == 1
        if not alone:
            pool.policy.placed(chosen, fit, ask, now_s)
        if ask.session is not None:
            pool.policy.remember(ask, chosen)
        return Lease(chosen, ask, now_s, _reason(ask, chosen, alone=alone), retry=retry)

    def _elsewhere(self, look: Look, now_s: float) -> Look:
        """Choose among those that may have another request. Raises Full."""
        client = look.ask.client
        fit = [each for each in look.fit if not each.is_closed(client, now_s)]
        if look.pool.full or not fit:
            raise Full(max([each.left_alone.read(now_s, client) for each in look.fit]))
        chosen = (
            fit[0] if len(fit) == 1 else look.pool.policy.choose(fit, look.ask, now_s, self._rng)
        )
        return Look(look.pool, fit, look.ask, chosen)

    def explain(self, ask: Ask, now_s: float) -> Choice:
        """What `choose` would do, and why. Changes nothing. Raises UnknownModel, OverContext."""
        pools = self._fleet().resolve(ask)
        if ask.response_id is not None:
            try:
                owner = self._owner(pools, ask, ask.response_id, now_s)
            except UnknownResponse:
                return Choice(None, [], None, [])
            if owner is not None:
                if not (owner.can_serve or owner.may_finish(ask)):
                    return Choice(None, [], None, [])
                return Choice(owner.pool, [owner.name], Reason.AFFINITY, [])
        try:
            pool, fit, ask = self.among(pools, ask, now_s, ())
        except NoBackend:
            return Choice(None, [], None, candidates(pools, None, {}, ask))
        best, parts = pool.policy.explain(fit, ask, now_s)
        alone = len(fit) == 1
        if alone:
            best = fit
        found = candidates(pools, pool, dict(zip(fit, parts, strict=True)), ask)
        reason = _reason(ask, best[0], alone=alone) if best else None
        return Choice(pool.name, [backend.name for backend in best], reason, found)

    def among(
        self, pools: Sequence[Pool], ask: Ask, now_s: float, tried: Collection[Backend]
    ) -> tuple[Pool, list[Backend], Ask]:
        """The pool, those of its backends that may be chosen with their loads brought up to date,
        and the request with the home of its session. Raises NoBackend."""
        pool, fit = first_fit(pools, ask, tried)
        ask.home = pool.policy.home(ask) if ask.session is not None else None
        ask = self._weighed(ask, pool)
        fit = _warm_enough(fit, now_s)
        some_busy = False
        for backend in fit:
            backend.advance(now_s)
            some_busy = some_busy or backend.left_alone.until_s > now_s
        if some_busy:
            fit = [each for each in fit if not each.left_alone.read(now_s, ask.client)] or fit
        return pool, fit, ask

    def _weighed(self, ask: Ask, pool: Pool | None) -> Ask:
        small = ask.generates and ask.prompt_tokens < LARGE_TOKENS  # to embed, 512 may be many
        if small or not ask.engine or pool is None:
            return ask
        return self.computed_prompts.weigh(ask, pool)

    def cause(self, lease: Lease, now_s: float) -> Cause:
        """What explains a failure that its request may have caused, by where such failed of late.

        Call it once for each failure: it also remembers the failure."""
        pool = self._fleet().pool(lease.backend.pool)
        return self._blame.note(pool, lease, now_s) if pool is not None else Cause.BACKEND

    def refused(self, lease: Lease, now_s: float, status: int = 400) -> bool:
        """It was answered 4xx, or not at all; whether several say that only its backend does.

        What could go nowhere else does not count: a client may aim it.
        """
        peers = self._peers(lease.backend, lease.ask.model)
        backend, client = lease.backend, lease.ask.client
        alone = not lease.bound and charge_refusal(backend, client, peers, now_s)
        if not alone and 400 <= status < 500:
            self.computed_prompts.note(lease.ask, lease.backend.pool, None)
        return alone

    def bare(self, lease: Lease, now_s: float) -> Cause:
        """Its answer had no token; what explains that."""
        if lease.bound:
            return Cause.KIND  # a client may aim it: a probe tells
        pool = self._fleet().pool(lease.backend.pool)
        cause = self._bares.note(pool, lease, now_s) if pool is not None else Cause.BACKEND
        charge_bare(lease.backend, lease.ask.client, now_s, cause)
        return cause

    def computed(self, lease: Lease) -> None:
        """A request has ended whose prompt was computed, or may have been."""
        self.computed_prompts.note(lease.ask, lease.backend.pool, lease.computed_share)

    def left(self, lease: Lease, now_s: float) -> None:
        """Its client left. Note its prompt if that was not computed, as far as is known."""
        lease.backend.advance(now_s)
        if not lease.prefilling:
            return
        self.computed_prompts.note(lease.ask, lease.backend.pool, None)

    def may_retry(self, lease: Lease, cause: Cause, now_s: float) -> bool:
        """Whether the budget of its pool lets a request that has just failed go on."""
        pool = self._fleet().pool(lease.backend.pool)
        if pool is None:
            return True  # others serve the model, or nobody does
        budget = self._budgets.setdefault(pool.name, RetryBudget())
        return budget.allows(
            pool.backends,
            lease.backend,
            now_s,
            lease.ask.client,
            explained=cause in (Cause.CLIENT, Cause.KIND),
            sure=cause is Cause.NO_REQUEST,
        )

    def _peers(self, backend: Backend, model: str | None) -> list[Backend]:
        pool = self._fleet().pool(backend.pool)
        others = [b for b in pool.backends if b is not backend] if pool is not None else []
        return [b for b in others if b.fit and b.serves(model)]

    def may_search(self, ask: Ask, body_bytes: int, now_s: float) -> bool:
        """Whether one more backend may be asked for the response that `ask` refers to."""
        if self._is_nowhere(ask, now_s):
            return False
        backends = sum([len(pool.backends) for pool in self._fleet().pools])
        return self._searches.may_go_on(ask.client, body_bytes, backends, now_s)

    def is_lost(self, ask: Ask, without: Collection[Backend], now_s: float) -> bool:
        """Whether nobody holds the response that `ask` refers to; `without` have said so."""
        if self._is_nowhere(ask, now_s):
            return True
        if not self.may_hold(ask).issubset(without):
            return False
        if ask.response_id is not None:
            self._searches.found_nowhere(ask.client, ask.response_id, ask.model, now_s)
        return True

    def may_hold(self, ask: Ask) -> set[Backend]:
        """All that might hold the response that `ask` refers to, fit or not."""
        return {
            backend
            for pool in self._fleet().resolve(ask)
            for backend in pool.backends
            if backend.serves(ask.model)
        }

    def _is_nowhere(self, ask: Ask, now_s: float) -> bool:
        response_id = ask.response_id
        return response_id is not None and self._searches.is_nowhere(
            ask.client, response_id, ask.model, now_s
        )

    def _owner(
        self, pools: Sequence[Pool], ask: Ask, response_id: str, now_s: float
    ) -> Backend | None:
        """Who made a stored response, as far as it is remembered and still in the fleet.

        Raises UnknownResponse.
        """
        if self.owners.is_foreign(response_id, ask.tenant, now_s):
            raise UnknownResponse
        name = self.owners.find(response_id, now_s)
        if name is None and self._is_nowhere(ask, now_s):
            raise UnknownResponse
        if name is not None:
            for pool in pools:
                for backend in pool.backends:
                    if backend.name == name:
                        return backend
        return None


def first_fit(
    pools: Sequence[Pool], ask: Ask, tried: Collection[Backend]
) -> tuple[Pool, list[Backend]]:
    """The first pool with backends that can serve it, and those. Raises NoBackend.

    When no pool has any, those count that are out and may be able (`doubted`): that is no
    reason to serve nobody.
    """
    for doubted in (False, True):
        for pool in pools:
            fit = [
                backend
                for backend in pool.backends
                if (backend.last_resort if doubted else backend.fit)
                and backend not in tried
                and backend.serves(ask.model)
            ]
            if fit:
                return pool, fit
    raise NoBackend


def _warm_enough(fit: list[Backend], now_s: float) -> list[Backend]:
    """`fit` without those that have all that their slow start allows; all where nobody is ready."""
    if not [backend for backend in fit if backend.slow_start is not None]:
        return fit
    weight, requests = 0.0, 0
    for backend in fit:
        backend.remote.expire(now_s)
        if backend.slow_start is None:
            weight += backend.weight
            requests += backend.requests_in_flight
    if not weight:
        return fit
    fair = requests / weight
    return [
        backend
        for backend in fit
        if backend.slow_start is None
        or backend.slow_start.admits(backend.requests_in_flight, fair * backend.weight, now_s)
    ]


def _reason(ask: Ask, chosen: Backend, *, alone: bool) -> Reason:
    if ask.home is not None:
        return Reason.AFFINITY if chosen.name == ask.home else Reason.SPILL
    return Reason.ONLY if alone else Reason.COST
