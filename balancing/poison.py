"""Remembers requests that kill engines, so that they kill no more.

The same bytes are refused to the same tenant for ten minutes, or until they were served after all:
then they were not the cause. `deaths` decides which requests these are.
"""

from typing import Final

import xxhash

MEMORY_S: Final = 600.0
# Per tenant, at 100 bytes each. Beyond this a tenant displaces its own.
REMEMBERED_MAX: Final = 64

# Identifies a request's bytes after they are gone: their number and their hash.
Mark = tuple[int, bytes]


class Poison:
    """Hashes of requests with which engines died, by tenant, oldest first."""

    __slots__ = ("_lengths", "_until_s")

    def __init__(self) -> None:
        self._until_s: dict[str, dict[bytes, float]] = {}
        # Lengths of these bodies, and until when they matter: other lengths are not hashed.
        self._lengths: dict[int, float] = {}

    def __len__(self) -> int:
        return sum(len(remembered) for remembered in self._until_s.values())

    def add(self, tenant: str, mark: Mark, now_s: float) -> None:
        """Remember a request. Beyond the limit the tenant's oldest one is forgotten."""
        self._forget_old(now_s)
        size_bytes, key = mark
        remembered = self._until_s.setdefault(tenant, {})
        remembered.pop(key, None)  # keep the order of time
        remembered[key] = self._lengths[size_bytes] = now_s + MEMORY_S
        if len(remembered) > REMEMBERED_MAX:
            del remembered[next(iter(remembered))]

    def may_hold(self, size_bytes: int, now_s: float) -> bool:
        """Whether a request with a body of this length is remembered. Others need no mark."""
        return bool(self._lengths) and self._lengths.get(size_bytes, 0.0) > now_s

    def holds(self, tenant: str, mark: Mark, now_s: float) -> bool:
        """Whether the request is remembered."""
        return self._until_s.get(tenant, {}).get(mark[1], 0.0) > now_s

    def served(self, mark: Mark) -> None:
        """The same bytes were answered, for any tenant: no engine dies of them."""
        for remembered in self._until_s.values():
            remembered.pop(mark[1], None)

    def _forget_old(self, now_s: float) -> None:
        for tenant, remembered in list(self._until_s.items()):
            while remembered and next(iter(remembered.values())) <= now_s:
                del remembered[next(iter(remembered))]
            if not remembered:
                del self._until_s[tenant]
        for length in [size for size, until_s in self._lengths.items() if until_s <= now_s]:
            del self._lengths[length]


class Marking:
    """Makes the mark of a request whose body comes in pieces."""

    __slots__ = ("_hash", "_size_bytes")

    def __init__(self, path: bytes) -> None:
        self._hash = xxhash.xxh3_128(seed=xxhash.xxh3_64_intdigest(path))
        self._size_bytes = 0

    def add(self, piece: bytes | memoryview) -> None:
        self._hash.update(piece)
        self._size_bytes += len(piece)

    @property
    def mark(self) -> Mark:
        return self._size_bytes, self._hash.digest()


def mark_of(path: bytes, body: bytes) -> Mark:
    """The mark of a request, by the path that its client named."""
    # 32 MiB in 3 ms. A cryptographic hash takes 50, and a forger would only harm himself.
    key: bytes = xxhash.xxh3_128_digest(body, xxhash.xxh3_64_intdigest(path))
    return len(body), key
