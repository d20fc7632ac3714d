"""The retry budget: how much of a pool's traffic may be second attempts. It stops retry storms.

A running retry is a lease that is marked until its first token. One of five requests in flight may
be a retry, and three in any case (Envoy's budget). Beyond that a failure is answered at once.

One backend of four holds more than a fifth of the requests, and its death must stay invisible. So
requests that one backend fails move on beyond the budget, as long as no other backend of its pool
failed lately, for this client or for several. They still occupy the budget.

A client with less than a quarter of the retries may retry until twice the budget is in use. A
request that fails everywhere may not go beyond the budget.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.balancing.backend import Backend

SHARE: Final = 0.2
FLOOR: Final = 3
# A client may hold 1 / RESERVED of a budget even if others have used all of it.
RESERVED: Final = 4
# If two backends fail within this time, it is not the accident of one. Envoy's outlier detection
# uses the same interval.
CALM_S: Final = 10.0


class _Failed(NamedTuple):
    """The last failure at a backend: when, and for which client; None if no client can cause it.

    `several_s`: the last failure of another client before it, or one that no client can cause.
    """

    at_s: float
    client: str | None
    several_s: float


class RetryBudget:
    """The budget of one pool. It remembers which backends failed lately, and for whom."""

    def __init__(self) -> None:
        self._failed: dict[str, _Failed] = {}  # by backend

    def __len__(self) -> int:
        return len(self._failed)

    def allows(
        self,
        backends: Sequence[Backend],
        failed: Backend,
        now_s: float,
        client: str = "",
        *,
        explained: bool = False,
        sure: bool = False,
    ) -> bool:
        """Whether a request that failed at `failed` may be retried on another of `backends`.

        It counts as in flight, though its lease has ended. `explained`: such requests fail
        everywhere. `sure`: no client can cause this failure.
        """
        if not explained and self._alone(backends, failed, now_s, None if sure else client):
            return True
        retries = mine = 0
        in_flight = 1
        for backend in backends:
            retries += backend.own.retries
            in_flight += backend.own.requests
            mine += backend.retrying.get(client, 0)
        budget = max(FLOOR, int(SHARE * in_flight))
        return retries < budget or (retries < 2 * budget and mine < max(1, budget // RESERVED))

    def _alone(
        self, backends: Sequence[Backend], failed: Backend, now_s: float, client: str | None
    ) -> bool:
        """Whether no other backend of the pool failed lately, for this client or for several."""
        lately = {name: seen for name, seen in self._failed.items() if now_s - seen.at_s < CALM_S}
        before = lately.get(failed.name)
        several_s = before.several_s if before is not None else float("-inf")
        if client is None:
            several_s = now_s
        elif before is not None and before.client != client:
            several_s = max(several_s, before.at_s)
        lately[failed.name] = _Failed(now_s, client, several_s)
        self._failed = lately
        # After a reload `failed` may be another object with the same name.
        others = [lately.get(each.name) for each in backends if each.name != failed.name]
        return not any(
            seen is not None and (seen.client in (None, client) or now_s - seen.several_s < CALM_S)
            for seen in others
        )
