"""How much of a pool's traffic may be second attempts: the guard against retry storms.

A retry under way is a lease marked as one that waits for its first token; it may
be one of five requests in flight, and three in any case (Envoy's budget). Beyond
that a failure is answered at once: a fleet that fails gets no load on top.

One backend of four holds more than a fifth, and its death must stay invisible.
So the requests that a dead backend loses move on whatever the budget says, as
long as no other of its pool was lost lately: they can leave it only once, and
leave no work behind. They occupy the budget all the same.
"""

from collections.abc import Sequence
from typing import Final

from balancing.backend import Backend

SHARE: Final = 0.2
FLOOR: Final = 3
# Two losses within this time are no accident of one backend. Envoy's outlier detection
# sweeps at this pace.
CALM_S: Final = 10.0


class RetryBudget:
    """The budget of one pool; it remembers when each backend was last lost."""

    __slots__ = ("_lost_s",)

    def __init__(self) -> None:
        self._lost_s: dict[str, float] = {}

    def allows(
        self, backends: Sequence[Backend], failed: Backend, now_s: float, *, lost: bool
    ) -> bool:
        """Whether a request that `failed` failed may be tried again on another of `backends`.

        `lost`: its engine or its connection died with the request. The request itself is
        taken to be in flight still, its lease to be ended.
        """
        if lost and self._alone(backends, failed, now_s):
            return True
        retries = 0
        in_flight = 1
        for backend in backends:
            retries += backend.own.retries
            in_flight += backend.own.requests
        return retries < max(FLOOR, int(SHARE * in_flight))

    def _alone(self, backends: Sequence[Backend], failed: Backend, now_s: float) -> bool:
        """Whether `failed` is the only one of the pool that was lost lately."""
        self._lost_s[failed.name] = now_s
        for backend in backends:
            if backend is not failed:
                lost_s = self._lost_s.get(backend.name)
                if lost_s is not None and now_s - lost_s < CALM_S:
                    return False
        return True
