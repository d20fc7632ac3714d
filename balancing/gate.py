"""The gate: through which every request is sent to its backend. Always open for now.

Choosing and reserving are one synchronous call, so that no other request can
come between the reading of a load and the lease that changes it.
"""

from collections.abc import Callable, Collection
from random import Random

from balancing.ask import Ask
from balancing.backend import AdminState, Backend
from balancing.fleet import Fleet, Pool
from balancing.lease import Lease, Reason


class NoBackend(LookupError):
    """Nothing can serve this request now."""


class Gate:
    """Admits requests to the fleet that `fleet()` returns at that moment."""

    def __init__(self, fleet: Callable[[], Fleet], rng: Random) -> None:
        self._fleet = fleet
        self._rng = rng

    def choose(self, ask: Ask, now_s: float, tried: Collection[Backend] = ()) -> Lease:
        """Choose a backend and reserve the tokens on it. Raises NoBackend, UnknownModel.

        `tried` are backends that already failed this request.
        """
        for pool in self._fleet().resolve(ask):
            fit = [
                backend
                for backend in pool.backends
                if backend.fit and backend not in tried and backend.serves(ask.model)
            ]
            if not fit:  # panic: suspicion is no reason to serve nobody
                fit = [
                    backend
                    for backend in pool.backends
                    if backend.doubted
                    and backend.admin_state is AdminState.READY
                    and backend not in tried
                    and backend.serves(ask.model)
                ]
            if not fit:
                continue
            fit = _warm_enough(pool, fit, ask, now_s)
            for backend in fit:
                backend.advance(now_s)
            if len(fit) == 1:
                return Lease(fit[0], ask, now_s, Reason.ONLY)
            return Lease(pool.policy.choose(fit, ask, now_s, self._rng), ask, now_s)
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
