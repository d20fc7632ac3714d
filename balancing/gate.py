"""The gate: where a request waits until it may be sent. Always open for now.

`enter` is awaited because admission will hold requests here; choosing and
reserving stay one synchronous call (`choose`), so that no other request can
come between the reading of a load and the lease that changes it.
"""

from collections.abc import Callable, Collection
from random import Random

from balancing.ask import Ask
from balancing.backend import Backend
from balancing.fleet import Fleet
from balancing.lease import Lease, Reason


class NoBackend(LookupError):
    """Nothing can serve this request now."""


class Gate:
    """Admits requests to the fleet that `fleet()` returns at that moment."""

    def __init__(self, fleet: Callable[[], Fleet], now: Callable[[], float], rng: Random) -> None:
        self._fleet = fleet
        self._now = now
        self._rng = rng

    async def enter(
        self, ask: Ask, deadline_s: float | None = None, tried: Collection[Backend] = ()
    ) -> Lease:
        """Wait for admission, then choose and reserve. Raises NoBackend, UnknownModel.

        `deadline_s` bounds the wait, `tried` are backends that already failed
        this request. Cancellable while it waits; its phase is `queued`.
        """
        return self.choose(ask, self._now(), tried)

    def choose(self, ask: Ask, now_s: float, tried: Collection[Backend] = ()) -> Lease:
        """Choose a backend and reserve the tokens on it, in one step."""
        for pool in self._fleet().resolve(ask):
            fit = [
                backend
                for backend in pool.backends
                if backend.fit and backend not in tried and backend.serves(ask.model)
            ]
            if not fit:
                continue
            for backend in fit:
                backend.advance(now_s)
            if len(fit) == 1:
                return Lease(fit[0], ask, now_s, Reason.ONLY)
            return Lease(pool.policy.choose(fit, ask, now_s, self._rng), ask, now_s)
        raise NoBackend
