"""The gate: through which every request is sent to its backend. Always open for now.

Choosing and reserving are one synchronous call, so that no other request can
come between the reading of a load and the lease that changes it.
"""

from collections.abc import Callable, Collection, Sequence
from random import Random

from balancing.ask import Ask
from balancing.backend import Backend
from balancing.fleet import Fleet, Pool
from balancing.lease import Lease, Reason
from balancing.policies.session import Session
from balancing.response_owners import ResponseOwners
from balancing.retry_budget import RetryBudget


class NoBackend(LookupError):
    """Nothing can serve this request now."""


class OwnerAway(NoBackend):
    """The backend that made the response which is asked for cannot be asked now."""


class ForeignResponse(LookupError):
    """The stored response that it refers to is another tenant's."""


class Gate:
    """Admits requests to the fleet that `fleet()` returns at that moment."""

    def __init__(self, fleet: Callable[[], Fleet], rng: Random) -> None:
        self._fleet = fleet
        self._rng = rng
        self._budgets: dict[str, RetryBudget] = {}  # by pool
        self.owners = ResponseOwners()

    def choose(
        self, ask: Ask, now_s: float, tried: Collection[Backend] = (), *, retry: bool = False
    ) -> Lease:
        """Choose a backend and reserve the tokens on it.

        Raises NoBackend, OwnerAway, ForeignResponse, UnknownModel.

        `tried` are backends that already failed this request; `retry`: an engine may have
        worked on it there.
        """
        pools = self._fleet().resolve(ask)
        if ask.response_id is not None:
            if self.owners.is_foreign(ask.response_id, ask.tenant, now_s):
                raise ForeignResponse
            owner = self._owner(pools, ask.response_id, now_s)
            if owner is not None and owner not in tried:
                if not (owner.can_serve or owner.may_finish(ask)):
                    raise OwnerAway
                owner.advance(now_s)
                return Lease(owner, ask, now_s, Reason.AFFINITY, bound=True, retry=retry)
        pool, fit = _fit(pools, ask, tried)
        fit = _warm_enough(pool, fit, ask, now_s)
        for backend in fit:
            backend.advance(now_s)
        alone = len(fit) == 1
        chosen = fit[0] if alone else pool.policy.choose(fit, ask, now_s, self._rng)
        reason = _reason(pool, ask, chosen, alone=alone)
        return Lease(chosen, ask, now_s, reason, retry=retry)

    def may_retry(self, failed: Backend, now_s: float) -> bool:
        """Whether the budget of its pool lets a request that `failed` failed go on."""
        for pool in self._fleet().pools:
            if pool.name == failed.pool:
                budget = self._budgets.setdefault(pool.name, RetryBudget())
                return budget.allows(pool.backends, failed, now_s)
        return True  # its pool is gone: others serve the model, or nobody does

    def may_hold(self, ask: Ask) -> set[Backend]:
        """All that might hold the response that `ask` refers to, fit or not."""
        return {
            backend
            for pool in self._fleet().resolve(ask)
            for backend in pool.backends
            if backend.serves(ask.model)
        }

    def _owner(self, pools: Sequence[Pool], response_id: str, now_s: float) -> Backend | None:
        """Who made a stored response, as far as it is remembered and still in the fleet."""
        name = self.owners.find(response_id, now_s)
        if name is not None:
            for pool in pools:
                for backend in pool.backends:
                    if backend.name == name:
                        return backend
        return None


def _fit(pools: Sequence[Pool], ask: Ask, tried: Collection[Backend]) -> tuple[Pool, list[Backend]]:
    """The first pool with backends that can serve it, and those. Raises NoBackend.

    When no pool has any, those count that are out on suspicion alone: that is no
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


def _warm_enough(pool: Pool, fit: list[Backend], ask: Ask, now_s: float) -> list[Backend]:
    """`fit` without those whose slow start does not allow this request; all if none is left."""
    if not any(backend.slow_start for backend in fit):
        return fit
    pool_tokens = sum(backend.taken_tokens for backend in pool.backends)
    weight = sum(backend.weight for backend in fit)
    allowed = [
        backend
        for backend in fit
        if backend.slow_start is None
        or backend.slow_start.admits(
            ask.prompt_tokens,
            now_s,
            own_tokens=backend.taken_tokens,
            pool_tokens=pool_tokens,
            fair=backend.weight / weight,
        )
    ]
    return allowed or fit


def _reason(pool: Pool, ask: Ask, chosen: Backend, *, alone: bool) -> Reason:
    if ask.session is not None and isinstance(pool.policy, Session):
        home = pool.policy.home(ask.session)
        return Reason.AFFINITY if chosen.name == home else Reason.SPILL
    return Reason.ONLY if alone else Reason.COST
