"""Everything that follows from the settings, as one value.

The data plane runs on one such value and a reload puts the next in its place,
in one step of the loop: no request sees half of each. Backends that both name
alike (pool, name and url) are the same objects before and after, with their
load, health, measured speed and connections; whatever else depends on a setting
is made here and nowhere else.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from balancing.backend import Backend
from balancing.fleet import Fleet, Pool
from balancing.policies import POLICIES
from balancing.policies.token_cost import TokenCost
from balancing.session_key import SessionKeys
from balancing.token_counter import TokenCounter
from conf.settings import PoolSettings, Settings
from proxy.connection_pool import ConnectionPool
from proxy.counting import Counting
from proxy.host import Names
from proxy.paths import Paths
from proxy.tenants import Tenants
from proxy.tls import PLAIN, Certificates

# Policies that ask whose session a request belongs to.
SESSION_POLICIES: Final = frozenset({"session", "token_cost"})

Member = tuple[Backend, ConnectionPool]


@dataclass(frozen=True, slots=True)
class Configuration:
    """What the proxy runs on. `connections` are by backend, keys by pool.

    `authorizations` are the pools' own keys; `credentials` whether its backends get the
    client's key, and the one that they get in its place.
    """

    settings: Settings
    origins: Mapping[str, str]  # where each value came from, for people
    fleet: Fleet
    connections: Mapping[str, ConnectionPool]
    authorizations: Mapping[str, bytes]
    credentials: Mapping[str, tuple[bool, bytes | None]]
    certificates: Certificates
    tenants: Tenants
    # None: no pool asks for keys, so none is read.
    sessions: SessionKeys | None
    session_pools: frozenset[str]
    prefixes: bool  # whether a pool asks for the blocks of prompts
    paths: Paths
    # None: prompts are estimated.
    counting: Counting | None

    def settle(self) -> None:
        """Give backends that were there before what is new of them; on the way into use."""
        named = {backend.name: backend for backend in self.fleet.backends}
        for pool in self.settings.pools:
            for each in pool.backends:
                named[each.name].weight = each.weight
        for backend, connections in self.members:
            connections.connect_timeout_s = self.settings.timeouts.connect_s
            connections.trust(self.certificates.pools.get(backend.pool))
            connections.host.ask_again()

    @property
    def members(self) -> Iterator[Member]:
        """Every backend with its connections."""
        return ((each, self.connections[each.name]) for each in self.fleet.backends)


@dataclass(frozen=True, slots=True)
class Draft:
    """What is read and computed beforehand, off the loop: a fleet of nothing but new backends."""

    settings: Settings
    origins: Mapping[str, str]
    fleet: Fleet
    counter: TokenCounter | None
    sessions: SessionKeys | None
    certificates: Certificates


def draft(
    settings: Settings,
    origins: Mapping[str, str],
    counter: TokenCounter | None,
    certificates: Certificates = PLAIN,
) -> Draft:
    """Compute what takes long, such as rings of many backends. Touches nothing that runs."""
    affinity = settings.affinity
    asked = any(pool.policy in SESSION_POLICIES for pool in settings.pools)
    return Draft(
        settings,
        origins,
        Fleet(tuple(_pool_of(pool, strict=affinity.strict) for pool in settings.pools)),
        counter,
        SessionKeys(affinity.headers, affinity.body_fields) if asked else None,
        certificates,
    )


def configure(
    new: Draft,
    loop: asyncio.AbstractEventLoop,
    names: Names,
    known: Iterable[Member] = (),
    counting: Counting | None = None,
) -> Configuration:
    """The configuration that a draft describes, with those of the `known` that it names again.

    `counting` is the running one, for a draft that has no other counter. Changes nothing; what
    becomes of the known ones' weights and timeouts is `Configuration.settle`'s.
    """
    settings = new.settings
    known_by = {(each.pool, each.name, each.url): (each, pool) for each, pool in known}
    members = {}
    for each in new.fleet.backends:
        members[each] = known_by.get((each.pool, each.name, each.url)) or (
            each,
            ConnectionPool(
                loop,
                each.url,
                connect_timeout_s=settings.timeouts.connect_s,
                name=each.name,
                names=names,
                tls=new.certificates.pools.get(each.pool),
            ),
        )
    return Configuration(
        settings=settings,
        origins=new.origins,
        fleet=Fleet(
            tuple(
                Pool(
                    pool.name,
                    tuple(members[each][0] for each in pool.backends),
                    pool.policy,
                    pool.models,
                )
                for pool in new.fleet.pools
            )
        ),
        connections={each.name: pool for each, pool in members.values()},
        authorizations={
            pool.name: b"Bearer " + pool.api_key.get_secret_value().encode()
            for pool in settings.pools
            if pool.api_key is not None
        },
        credentials={
            pool.name: _credentials(pool, tenants=bool(settings.tenants)) for pool in settings.pools
        },
        certificates=new.certificates,
        tenants=Tenants(settings.tenants),
        sessions=new.sessions,
        session_pools=frozenset(
            pool.name for pool in settings.pools if pool.policy in SESSION_POLICIES
        ),
        prefixes=any(pool.policy == "token_cost" for pool in settings.pools),
        paths=Paths(settings.paths),
        counting=Counting(loop, new.counter) if new.counter is not None else counting,
    )


def _pool_of(pool: PoolSettings, *, strict: bool) -> Pool:
    backends = tuple(
        Backend(each.name, each.url.rstrip("/"), pool.name, each.weight) for each in pool.backends
    )
    policy = POLICIES[pool.policy](backends)
    if pool.policy == "token_cost" and strict:
        policy = TokenCost(strict=True)
    return Pool(pool.name, backends, policy, frozenset(pool.models))


def _credentials(pool: PoolSettings, *, tenants: bool) -> tuple[bool, bytes | None]:
    """Whether a pool's backends get the client's key, and the one that they get in its place."""
    whose = pool.forward_authorization or ("pool" if tenants else "client")
    own = b"Bearer " + pool.api_key.get_secret_value().encode() if pool.api_key else None
    return whose == "client", None if whose == "none" else own
