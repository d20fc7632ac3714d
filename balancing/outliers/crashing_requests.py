"""Requests that crash engines: which request was the cause, and how long it is refused.

A request is the cause if two engines died soon after they got it, and no engine died without it
meanwhile. Where an engine had other requests, too, it takes three engines, and no other request
that was at all of them. What does not count as a death:

- the end of a backend that its operator takes out, or that shuts down;
- a failure at a backend that has been failing for a second, or that was ejected and is only a last
  resort: its engine has died already;
- a refused connection: there was no engine to die.

The same bytes are then refused to the same tenant for ten minutes, or until they were served after
all.
"""

from collections.abc import Iterable
from typing import Final

import xxhash

from penstock.balancing.backend import AdminState, Backend
from penstock.balancing.fair_table import put_last
from penstock.balancing.lease import Lease

# All requests of a dying engine fail at once. A failure later than this after the first one of the
# run met a backend that was failing already.
DEATH_S: Final = 1.0
# A request that kills an engine does so when it is scheduled, which may take a while.
SOON_S: Final = 10.0
# If only the connection ended, it must be sooner: a restart looks the same. A rolling restart takes
# longer than this between two backends, and the first one's requests have moved to the second.
SILENT_S: Final = 2.0
# Deaths this close together may have one cause: a host, a power supply, a hurried restart.
TOGETHER_S: Final = 10.0
ALONE_DEATHS: Final = 2
COMPANY_DEATHS: Final = 3
# The first death of a request is no older at its last one: it has three attempts.
KEPT_S: Final = 3.0 * SOON_S + TOGETHER_S
# How long a request that crashed engines is refused.
MEMORY_S: Final = 600.0
# Per tenant, at 100 bytes each. Beyond this a tenant displaces its own.
REMEMBERED_MAX: Final = 64

# Identifies a request's bytes after they are gone: their number and their hash.
Mark = tuple[int, bytes]


def died_of_it(lease: Lease, now_s: float) -> bool:
    """Whether a connection that just broke may mean that a healthy engine died."""
    return lease.sound and now_s - lease.backend.failing_since_s <= DEATH_S


def is_leaving(backend: Backend) -> bool:
    """Whether its end is expected: it is drained, in maintenance or shutting down."""
    return backend.admin_state is not AdminState.READY or backend.reason == "draining"


class Death:
    """The end of one engine. `moved`: backend -> keys of its requests that were sent there."""

    __slots__ = ("alone", "at_s", "backend", "expected", "explained", "moved")

    def __init__(self, backend: str, at_s: float, *, alone: bool, expected: bool) -> None:
        self.backend = backend
        self.at_s = at_s
        self.alone = alone  # it had one request only
        self.expected = expected
        self.explained = False  # whether its cause is known
        self.moved: dict[str, set[int]] = {}


class Deaths:
    """The last death of each backend, for as long as it matters."""

    def __init__(self) -> None:
        self._last: dict[str, Death] = {}

    def __len__(self) -> int:
        return len(self._last)

    def of(self, backend: Backend, now_s: float, *, expected: bool) -> Death:
        """The death that a request just met. All requests of one engine share it."""
        death = self._last.get(backend.name)
        if death is None or now_s - death.at_s > DEATH_S:
            self._last = {n: d for n, d in self._last.items() if now_s - d.at_s <= KEPT_S}
            alone = not backend.own.requests  # its own lease has ended, and it is the first to fail
            death = Death(backend.name, now_s, alone=alone, expected=expected)
            self._last[backend.name] = death
        return death

    def others(self, own: list[Death]) -> bool:
        """Whether another engine died since these did, or just before, without a known cause."""
        since_s = own[0].at_s - TOGETHER_S
        return any(
            not death.explained and death not in own and death.at_s >= since_s
            for death in self._last.values()
        )


class Suspect:
    """A request with which engines died. `key` is the hash of its bytes."""

    __slots__ = ("_at", "_key", "_met", "_restarts")

    def __init__(self, key: int) -> None:
        self._key = key
        self._met: list[Death] = []  # those that count against it
        self._restarts: dict[str, int] = {}  # of each backend, at the first of these
        self._at = ""

    def sent(self, backend: str) -> None:
        """It was sent to another backend."""
        self._at = backend
        for death in self._met:
            death.moved.setdefault(backend, set()).add(self._key)

    def spared(self) -> None:
        """It left this backend, and the engine is alive."""
        if self._at:
            for death in self._met:
                death.moved[self._at].discard(self._key)
            self._at = ""

    def died(
        self,
        lease: Lease,
        deaths: Deaths,
        now_s: float,
        *,
        expected: bool,
        told: bool,
        peers: Iterable[Backend],
    ) -> bool:
        """An engine died with it. Returns whether it is the cause, as far as can be told.

        `told`: the engine's server said that it died. `peers`: all backends of the pool.
        """
        name = lease.backend.name
        death = deaths.of(lease.backend, now_s, expected=expected)
        self._at = ""
        soon = now_s - lease.began_s <= (SOON_S if told else SILENT_S)
        if death.expected or not soon or death in self._met:
            return False
        death.explained = death.explained or told  # by itself, and no restart
        earlier = self._met
        self._met = met = [*earlier, death]
        if not earlier:
            self._restarts = {each.name: each.restarts for each in peers}
        engines = {each.backend for each in met}
        others = deaths.others(met) or any(
            each.restarts > self._restarts.get(each.name, each.restarts)
            for each in peers
            if each.name not in engines
        )
        # It is the only one that moved here from one of the others.
        only = any(len(before.moved.get(name, ())) <= 1 for before in earlier)
        needed = ALONE_DEATHS if all(each.alone for each in met) else COMPANY_DEATHS
        cause = len(engines) >= needed and only and not others
        if cause:
            for each in met:
                each.explained = True
        return cause


class Poison:
    """Hashes of requests that crashed engines, oldest first, and until when they are kept."""

    def __init__(self) -> None:
        self.by_tenant: dict[str, dict[bytes, float]] = {}
        # Lengths of these bodies, and until when they matter: other lengths are not hashed.
        self._lengths: dict[int, float] = {}

    def __len__(self) -> int:
        return sum([len(remembered) for remembered in self.by_tenant.values()])

    def add(self, tenant: str, mark: Mark, now_s: float) -> None:
        """Remember a request. Beyond the limit the tenant's oldest one is forgotten."""
        self._forget_old(now_s)
        size_bytes, key = mark
        remembered = self.by_tenant.setdefault(tenant, {})
        self._lengths[size_bytes] = now_s + MEMORY_S
        put_last(remembered, key, now_s + MEMORY_S, REMEMBERED_MAX)

    def may_hold(self, size_bytes: int, now_s: float) -> bool:
        """Whether a request with a body of this length is remembered. Others need no mark."""
        return bool(self._lengths) and self._lengths.get(size_bytes, 0.0) > now_s

    def holds(self, tenant: str, mark: Mark, now_s: float) -> bool:
        """Whether the request is remembered."""
        return self.by_tenant.get(tenant, {}).get(mark[1], 0.0) > now_s

    def served(self, mark: Mark) -> None:
        """The same bytes were answered, for any tenant: no engine dies of them."""
        for remembered in self.by_tenant.values():
            remembered.pop(mark[1], None)

    def _forget_old(self, now_s: float) -> None:
        for tenant, remembered in list(self.by_tenant.items()):
            left = {key: until_s for key, until_s in remembered.items() if until_s > now_s}
            self.by_tenant[tenant] = left
            if not left:
                del self.by_tenant[tenant]
        self._lengths = {n: until_s for n, until_s in self._lengths.items() if until_s > now_s}


class Marking:
    """Makes the mark of a request whose body comes in pieces.

    32 MiB take 3 ms. A cryptographic hash takes 50, and a forger would only harm himself.
    """

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
    return len(body), xxhash.xxh3_128_digest(body, xxhash.xxh3_64_intdigest(path))
