"""Requests that kill engines: remembered, so that they kill no third.

A request on which two engines died is taken for the cause. Nothing tells the
cause from those that died beside it, so who was waiting on two engines that were
killed one after the other within its own prefill is remembered too; only the
very same bytes are refused, and for ten minutes. What keeps the innocent out:

- an engine dies once: a backend that has been failing for a second, or is out and
  tried for want of better, does not die again of each request that it fails;
- the deaths of one request are counted, not those of a text that many send;
- who finds nobody listening has met no death.
"""

from hashlib import blake2b
from typing import Final

from balancing.lease import Lease

MEMORY_S: Final = 600.0
# All that die with an engine hear of it at once; who fails later than this after the
# first of a row met a backend that was failing already.
DEATH_S: Final = 1.0
# At 100 bytes each: a fleet has long ceased to exist when this many have killed two engines.
REMEMBERED_MAX: Final = 1_024


def died_of_it(lease: Lease, now_s: float) -> bool:
    """Whether a connection that broke just now may have been the end of a sound engine."""
    return lease.sound and now_s - lease.backend.failing_since_s <= DEATH_S


class Poison:
    """Hashes of requests that two engines died on, oldest first."""

    __slots__ = ("_until_s",)

    def __init__(self) -> None:
        self._until_s: dict[bytes, float] = {}

    def __len__(self) -> int:
        return len(self._until_s)

    def add(self, path: str, body: bytes, now_s: float) -> None:
        """Remember a request; beyond the limit the oldest is forgotten."""
        key = _key(path, body)
        self._until_s.pop(key, None)  # the order is that of time
        self._until_s[key] = now_s + MEMORY_S
        if len(self._until_s) > REMEMBERED_MAX:
            del self._until_s[next(iter(self._until_s))]

    def holds(self, path: str, body: bytes, now_s: float) -> bool:
        """Whether the request is remembered. Nothing is hashed while nothing is."""
        while self._until_s:
            oldest = next(iter(self._until_s))
            if self._until_s[oldest] > now_s:
                return _key(path, body) in self._until_s
            del self._until_s[oldest]
        return False


def _key(path: str, body: bytes) -> bytes:
    return blake2b(body, digest_size=16, key=path.encode()[:64]).digest()
