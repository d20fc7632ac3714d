"""How much of a pool's traffic may be second attempts: the guard against retry storms.

A retry under way is a lease marked as one that waits for its first token; it may
be one of five requests in flight, and three in any case (Envoy's budget). Beyond
that a failure is answered at once: a fleet that fails gets no load on top.

One backend of four holds more than a fifth, and its death must stay invisible.
So what a single backend fails moves on whatever the budget says, as long as no
other of its pool failed anything lately: requests can leave it only once, and the
others are well. They occupy the budget all the same, for when a second one fails.
"""

from collections.abc import Sequence
from typing import Final

from balancing.backend import Backend

SHARE: Final = 0.2
FLOOR: Final = 3
# Two backends that fail within this time are no accident of one. Envoy's outlier
# detection sweeps at this pace.
CALM_S: Final = 10.0


class RetryBudget:
    """The budget of one pool; it remembers when each backend last failed."""

    __slots__ = ("_failed_s",)

    def __init__(self) -> None:
        self._failed_s: dict[str, float] = {}

    def allows(self, backends: Sequence[Backend], failed: Backend, now_s: float) -> bool:
        """Whether a request that `failed` failed may be tried again on another of `backends`.

        It is taken to be in flight still, its lease to be ended.
        """
        if self._alone(backends, failed, now_s):
            return True
        retries = 0
        in_flight = 1
        for backend in backends:
            retries += backend.own.retries
            in_flight += backend.own.requests
        return retries < max(FLOOR, int(SHARE * in_flight))

    def _alone(self, backends: Sequence[Backend], failed: Backend, now_s: float) -> bool:
        """Whether `failed` is the only one of the pool that failed anything lately."""
        self._failed_s[failed.name] = now_s
        for backend in backends:
            if backend.name != failed.name:  # after a reload it may be another of the name
                failed_s = self._failed_s.get(backend.name)
                if failed_s is not None and now_s - failed_s < CALM_S:
                    return False
        return True
