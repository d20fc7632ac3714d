"""Whose fault a failure is. A request that fails everywhere is at fault itself.

If a client's requests fail at more than half of a pool within a minute, the client is the cause.
If one kind of request fails there for several clients, that kind is the cause. It is not if one
client met more than half of the failures (the last at each backend counts): one client must not
hide what others meet. The limit is more than half of the pool, because no more backends may be
ejected on suspicion. A failure at another backend counts only if failures there are at least a
quarter as frequent: a rare failure elsewhere does not excuse a backend that fails every request.
Failures that no request can cause, such as a refused connection, are not noted here.
"""

from math import exp
from typing import Final, NamedTuple

from penstock.balancing.fair_table import put_last
from penstock.balancing.fleet import Pool
from penstock.balancing.lease import Lease
from penstock.balancing.outliers.penalties import Cause
from penstock.balancing.output_length import NAME_MAX

WITHIN_S: Final = 60.0
# A client that fills the table is forgotten last, and so hides only its own failures. Others are
# back with their next failures. 64 KB at most for usual pools.
KEYS_MAX: Final = 1_024
# "As often", roughly: backends do not get equally many requests, nor at the same time.
AS_OFTEN: Final = 0.25


class Failed(NamedTuple):
    """The failures of a client or kind at one backend."""

    at_s: float  # the last failure
    client: str  # the client that met it
    often: float  # how many within a minute or so; recent ones count more

    def often_at(self, now_s: float) -> float:
        """`often` at the time `now_s`: older failures count less."""
        return self.often * exp((self.at_s - now_s) / WITHIN_S)


class Blame:
    """Where each client and each kind of request failed lately, the latest last."""

    def __init__(self) -> None:
        self._failed: dict[str, dict[str, Failed]] = {}  # by client or kind, then by backend

    def __len__(self) -> int:
        return len(self._failed)

    def note(self, pool: Pool, lease: Lease, now_s: float) -> Cause:
        """Note that `lease`'s request failed at a backend of `pool`. Returns what explains it."""
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
        """Note a failure. Returns the client of the last failure at each backend that counts."""
        failed = {
            name: seen
            for name, seen in self._failed.pop(key, {}).items()
            if name in fit and now_s - seen.at_s < WITHIN_S
        }
        name, client = lease.backend.name, lease.ask.client
        before = failed.get(name)
        often = 1.0 + (before.often_at(now_s) if before is not None else 0.0)
        failed[name] = Failed(now_s, client, often)
        put_last(self._failed, key, failed, KEYS_MAX)
        return [seen.client for seen in failed.values() if seen.often_at(now_s) >= AS_OFTEN * often]


def _is_most(count: int, of: int) -> bool:
    return count > 1 and 2 * count > of
