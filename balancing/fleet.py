"""The fleet: an immutable snapshot of pools and backends.

A reload builds a whole new `Fleet` and replaces one attribute. Requests under way keep the
backend object of their lease.
"""

from dataclasses import dataclass

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.policies.policy import Policy


class UnknownModel(LookupError):
    """No pool serves the model that was asked for."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Backends that serve the same model and version, and how one is chosen."""

    name: str
    backends: tuple[Backend, ...]
    policy: Policy
    models: frozenset[str] = frozenset()  # empty: whatever its backends list
    max_requests: int | None = None  # of our own, at the same time
    admission: bool = True  # its requests may wait in the proxy

    @property
    def full(self) -> bool:
        """Whether its backends have all the requests that they may have together."""
        if self.max_requests is None:
            return False
        return sum([each.own.requests for each in self.backends]) >= self.max_requests

    def serves(self, model: str | None) -> bool:
        """Whether requests for `model` belong to this pool."""
        if model is None:
            return True
        if self.models:
            return model in self.models
        for backend in self.backends:  # usually the first one does: no generator
            if backend.models is None or model in backend.models:
                return True
        return not self.backends  # those that will be found may list any


@dataclass(frozen=True, slots=True)
class Fleet:
    """All pools, in the configuration's order."""

    pools: tuple[Pool, ...]

    @property
    def backends(self) -> tuple[Backend, ...]:
        return tuple(backend for pool in self.pools for backend in pool.backends)

    def pool(self, name: str) -> Pool | None:
        """The pool of this name. None where a reload has removed it."""
        for pool in self.pools:
            if pool.name == name:
                return pool
        return None

    def resolve(self, ask: Ask) -> list[Pool]:
        """The pools that may serve `ask`, the best one first. Raises UnknownModel."""
        if ask.first_pool:
            return [self.pools[0]]
        # A route says so. Where a reload has removed that pool, the model decides.
        routed = self.pool(ask.pool) if ask.pool else None
        if routed is not None:
            return [routed]
        pools = [pool for pool in self.pools if pool.serves(ask.model)]
        if not pools:
            raise UnknownModel
        return pools
