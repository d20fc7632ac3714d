"""Backends that were removed from the configuration. They stay until their last request has ended.

They get no new requests and no probes. When nothing is in flight there, their connections are
closed and their series leave the metrics. A backend that is named again before that is taken back
with its load.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from penstock.balancing.backend import Backend
from penstock.balancing.fleet import Fleet
from penstock.proxy.data.configuration import Member
from penstock.proxy.telemetry.metrics import Metrics
from penstock.proxy.wire.pool import ConnectionPool

POLL_S: Final = 0.1


class Retirement:
    """The remaining backends of former configurations. `fleet()` is the fleet in use."""

    def __init__(self, metrics: Metrics, fleet: Callable[[], Fleet]) -> None:
        self._metrics = metrics
        self._fleet = fleet
        self._members: dict[Backend, ConnectionPool] = {}
        self._waiting: asyncio.Task[None] | None = None

    @property
    def members(self) -> Iterator[Member]:
        """The backends that still have requests, the longest removed first."""
        return iter(self._members.items())

    @property
    def known(self) -> tuple[Backend, ...]:
        """All backends to report: those in use first, and each name once."""
        by_name: dict[str, Backend] = {}
        for backend in (*self._fleet().backends, *self._members):
            by_name.setdefault(backend.name, backend)
        return tuple(by_name.values())

    def take(self, before: Iterable[Member]) -> None:
        """The fleet has changed. Keep the backends of `before` that the new one does not name."""
        used = set(self._fleet().backends)
        members = self._members | dict(before)
        self._members = {each: pool for each, pool in members.items() if each not in used}
        if self._members and self._waiting is None:
            self._waiting = asyncio.create_task(self._wait())

    def close(self) -> None:
        """The proxy ends: close everything at once."""
        if self._waiting is not None:
            self._waiting.cancel()
        for connections in self._members.values():
            connections.close()

    def dismiss(self) -> None:
        """Close the backends where nothing is in flight."""
        gone = [each for each in self._members if each.own.idle]
        for backend in gone:
            self._members.pop(backend).close()
        left = {(each.pool, each.name) for each in (*self._fleet().backends, *self._members)}
        pools = {pool for pool, _ in left}
        for backend in gone:
            if (backend.pool, backend.name) not in left:
                self._metrics.forget_backend(backend.pool, backend.name)
            if backend.pool not in pools:
                self._metrics.forget_pool(backend.pool)

    async def _wait(self) -> None:
        while self._members:
            await asyncio.sleep(POLL_S)
            self.dismiss()
        self._waiting = None
