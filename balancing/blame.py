"""Whose fault a failure is: what a request causes everywhere is the request's own.

A client whose requests fail at more than half of a pool within a minute is the cause of
it, and so is a kind of request that fails there for several clients, none of whom met
more than half of that: one alone must not hide what others meet. More than half of the
pool, because no more may be ejected on suspicion in any case. A failure elsewhere counts only
where failures are at least a quarter as frequent: one now and then excuses no backend that
fails everything. What no
request can cause, such as a connection that nobody takes, is not noted here.
"""

from math import exp
from typing import Final, NamedTuple

from balancing.accusers import Cause
from balancing.fleet import Pool
from balancing.lease import Lease
from balancing.output_length import NAME_MAX

WITHIN_S: Final = 60.0
# Who floods it is forgotten last and only hides what it does itself; others are back
# with their next failures. 64 KB at the most for usual pools.
KEYS_MAX: Final = 1_024
# As often, give or take: backends are not sent the same number of requests, nor at one time.
AS_OFTEN: Final = 0.25


class Failed(NamedTuple):
    """What failed at one backend."""

    at_s: float  # the last
    client: str  # whose that was
    often: float  # how many within a minute or so, the last ones first

    def often_at(self, now_s: float) -> float:
        """How many by now: the older they are the less they count."""
        return self.often * exp((self.at_s - now_s) / WITHIN_S)


class Blame:
    """Where each client and each kind of request failed of late, the latest last."""

    __slots__ = ("_failed",)

    def __init__(self) -> None:
        self._failed: dict[str, dict[str, Failed]] = {}  # by client or kind, by backend

    def __len__(self) -> int:
        return len(self._failed)

    def note(self, pool: Pool, lease: Lease, now_s: float) -> Cause:
        """Note that `lease`'s request failed at a backend of `pool`; what explains it."""
        ask = lease.ask
        fit = {
            backend.name
            for backend in pool.backends
            if backend is lease.backend or (backend.fit and backend.serves(ask.model))
        }
        client = f"client {pool.name} {ask.client}"
        kind = f"kind {pool.name} {ask.path[:NAME_MAX]} {ask.stream} {(ask.model or '')[:NAME_MAX]}"
        by_client = self._noted(client, lease, fit, now_s)
        if _is_most(len(by_client), len(fit)):
            return Cause.CLIENT
        by_kind = self._noted(kind, lease, fit, now_s)
        most = max(by_kind.count(each) for each in by_kind)
        if _is_most(len(by_kind), len(fit)) and 2 * most <= len(by_kind):
            return Cause.KIND
        return Cause.BACKEND

    def _noted(self, key: str, lease: Lease, fit: set[str], now_s: float) -> list[str]:
        """Whose requests failed last at each fit backend at which this one's like fails too."""
        failed = {
            name: seen
            for name, seen in self._failed.pop(key, {}).items()
            if name in fit and now_s - seen.at_s < WITHIN_S
        }
        name, client = lease.backend.name, lease.ask.client
        before = failed.get(name)
        often = 1.0 + (before.often_at(now_s) if before is not None else 0.0)
        failed[name] = Failed(now_s, client, often)
        self._failed[key] = failed  # the order is that of time
        if len(self._failed) > KEYS_MAX:
            del self._failed[next(iter(self._failed))]
        return [seen.client for seen in failed.values() if seen.often_at(now_s) >= AS_OFTEN * often]


def _is_most(count: int, of: int) -> bool:
    return count > 1 and 2 * count > of
