"""Backends that the configuration names no more: there until their last request has ended.

They get no new request and no probe. When nothing is in flight there, their
connections are closed and their series leave the metrics. One that is named
again before that is taken back with the load it has.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from balancing.backend import Backend
from balancing.fleet import Fleet
from proxy.configuration import Member
from proxy.connection_pool import ConnectionPool
from proxy.metrics import Metrics

POLL_S: Final = 0.1


class Retirement:
    """What is left of former configurations. `fleet()` is the one in use."""

    def __init__(self, metrics: Metrics, fleet: Callable[[], Fleet]) -> None:
        self._metrics = metrics
        self._fleet = fleet
        self._members: dict[Backend, ConnectionPool] = {}
        self._waiting: asyncio.Task[None] | None = None

    @property
    def members(self) -> Iterator[Member]:
        """Those that are still there, the longest gone first."""
        return iter(self._members.items())

    @property
    def known(self) -> tuple[Backend, ...]:
        """All backends of which there is something to tell: in use first, no name twice."""
        by_name: dict[str, Backend] = {}
        for backend in (*self._fleet().backends, *self._members):
            by_name.setdefault(backend.name, backend)
        return tuple(by_name.values())

    def take(self, before: Iterable[Member]) -> None:
        """The fleet has changed, from `before`: keep those that it names no more."""
        used = set(self._fleet().backends)
        members = self._members | dict(before)
        self._members = {each: pool for each, pool in members.items() if each not in used}
        if self._members and self._waiting is None:
            self._waiting = asyncio.create_task(self._wait())

    def close(self) -> None:
        """The proxy ends: wait for nobody."""
        if self._waiting is not None:
            self._waiting.cancel()
        for connections in self._members.values():
            connections.close()

    def dismiss(self) -> None:
        """Let those go where nothing is in flight."""
        for backend in [each for each in self._members if each.own.idle]:
            self._members.pop(backend).close()
            self._forget(backend)

    async def _wait(self) -> None:
        while self._members:
            await asyncio.sleep(POLL_S)
            self.dismiss()
        self._waiting = None

    def _forget(self, backend: Backend) -> None:
        left = {(each.pool, each.name) for each in (*self._fleet().backends, *self._members)}
        if (backend.pool, backend.name) not in left:
            self._metrics.forget_backend(backend.pool, backend.name)
        if backend.pool not in {pool for pool, _ in left}:
            self._metrics.forget_pool(backend.pool)
