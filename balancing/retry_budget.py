"""How much of a pool's traffic may be second attempts: the guard against retry storms.

A retry under way is a lease marked as one that waits for its first token; it may
be one of five requests in flight, and three in any case (Envoy's budget). Beyond
that a failure is answered at once: a fleet that fails gets no load on top.

One backend of four holds more than a fifth, and its death must stay invisible.
So what a single backend fails moves on whatever the budget says, as long as no
other of its pool failed anything lately: requests can leave it only once, and the
others are well. They occupy the budget all the same, for when a second one fails.

No client may use all of it up: one with less than a quarter of the budget's retries may
retry until twice the budget is in use. And what a request causes everywhere is no backend's
failure: it may use the budget as any other, but nothing moves on beyond it.
"""

from collections.abc import Sequence
from typing import Final

from balancing.backend import Backend

SHARE: Final = 0.2
FLOOR: Final = 3
# The part of a budget that a client may hold though others have used all of it up.
RESERVED: Final = 4
# Two backends that fail within this time are no accident of one. Envoy's outlier
# detection sweeps at this pace.
CALM_S: Final = 10.0


class RetryBudget:
    """The budget of one pool; it remembers which backends failed lately."""

    __slots__ = ("_failed_s",)

    def __init__(self) -> None:
        self._failed_s: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._failed_s)

    def allows(
        self,
        backends: Sequence[Backend],
        failed: Backend,
        now_s: float,
        client: str = "",
        *,
        explained: bool = False,
    ) -> bool:
        """Whether a request that `failed` failed may be tried again on another of `backends`.

        It is taken to be in flight still, its lease to be ended. `explained`: such requests
        fail everywhere.
        """
        if not explained and self._alone(backends, failed, now_s):
            return True
        retries = mine = 0
        in_flight = 1
        for backend in backends:
            retries += backend.own.retries
            in_flight += backend.own.requests
            mine += backend.retrying.get(client, 0)
        budget = max(FLOOR, int(SHARE * in_flight))
        return retries < budget or (retries < 2 * budget and mine < max(1, budget // RESERVED))

    def _alone(self, backends: Sequence[Backend], failed: Backend, now_s: float) -> bool:
        """Whether `failed` is the only one of the pool that failed anything lately."""
        lately = {name: at_s for name, at_s in self._failed_s.items() if now_s - at_s < CALM_S}
        lately[failed.name] = now_s
        self._failed_s = lately
        # After a reload `failed` may be another of its name.
        return not any(each.name in lately for each in backends if each.name != failed.name)
