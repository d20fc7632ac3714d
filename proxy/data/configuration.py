"""Everything that follows from the settings, as one value.

The data plane runs on one such value. A reload puts the next one in its place in one step of the
loop, so no request sees half of each. A backend with the same pool, name and URL in both is the
same object before and after, with its load, health, measured speed and connections. The policy of a
pool is the same object too if both name the same policy, with all that it learnt. Everything else
that depends on a setting is made here and nowhere else.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from time import monotonic

from penstock.balancing.backend import Backend
from penstock.balancing.fields import Fields
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.policies import POLICIES
from penstock.balancing.policies.policy import Policy
from penstock.balancing.routes.building import table_of
from penstock.balancing.routes.table import RouteTable
from penstock.balancing.session_key import SessionKeys
from penstock.balancing.token_counter import TokenCounter
from penstock.balancing.wants import WantedFields
from penstock.conf.pools import BackendSettings, PoolSettings
from penstock.conf.settings import Settings
from penstock.proxy.data.counting import Counting
from penstock.proxy.data.endpoints import Paths
from penstock.proxy.data.tenants import Tenants
from penstock.proxy.wire.certificates import PLAIN, Certificates
from penstock.proxy.wire.handshakes import HandshakeThreads
from penstock.proxy.wire.host import Names
from penstock.proxy.wire.pool import ConnectionPool

Member = tuple[Backend, ConnectionPool]


@dataclass(frozen=True, slots=True)
class Configuration:
    """What the proxy runs on. `connections` and keys are by backend.

    `authorizations` are its own keys; `credentials` whether it gets the client's key, and the one
    that it gets in its place.
    """

    settings: Settings
    origins: Mapping[str, str]  # where each value came from, for people
    fleet: Fleet
    policies: tuple[Policy, ...]  # as drafted, one for each pool: a policy that was kept follows it
    connections: Mapping[str, ConnectionPool]
    authorizations: Mapping[str, bytes]
    credentials: Mapping[str, tuple[bool, bytes | None]]
    certificates: Certificates
    tenants: Tenants
    # None: no pool's policy and no route needs session keys, so none are read.
    sessions: SessionKeys | None
    session_pools: frozenset[str]
    prefixes: bool  # whether a choice between backends needs prompts cut into blocks
    paths: Paths
    routes: RouteTable
    # None: prompts are estimated.
    counting: Counting | None

    def apply(self) -> None:
        """Give the kept backends and policies their new settings."""
        named = {backend.name: backend for backend in self.fleet.backends}
        for pool in self.settings.pools:
            for each in pool.backends:
                named[each.name].weight = each.weight
                named[each.name].max_requests = each.max_requests
        for kept, drafted in zip(self.fleet.pools, self.policies, strict=True):
            kept.policy.follow(drafted, kept.backends)
        for backend, connections in self.members:
            connections.connect_timeout_s = self.settings.timeouts.connect_s
            connections.trust(self.certificates.pools.get(backend.pool))
            connections.host.ask_again()

    @property
    def costs_per_hour(self) -> dict[str, float]:
        """What all backends of each pool cost together, where that is known."""
        return {
            pool.name: pool.cost_per_hour * len(pool.backends)
            for pool in self.settings.pools
            if pool.cost_per_hour is not None
        }

    @property
    def members(self) -> Iterator[Member]:
        """Every backend with its connections."""
        return ((each, self.connections[each.name]) for each in self.fleet.backends)


@dataclass(frozen=True, slots=True)
class Draft:
    """What is read and computed beforehand, off the loop. `policies`: a new one for each pool."""

    settings: Settings
    origins: Mapping[str, str]
    policies: tuple[Policy, ...]
    counter: TokenCounter | None
    sessions: SessionKeys | None
    routes: RouteTable
    certificates: Certificates


def draft(
    settings: Settings,
    origins: Mapping[str, str],
    counter: TokenCounter | None,
    certificates: Certificates = PLAIN,
) -> Draft:
    """Compute what takes long, such as rings of many backends. Touches nothing that runs."""
    affinity = settings.affinity
    policies = tuple(
        [POLICIES[pool.policy](pool.backends, strict=affinity.strict) for pool in settings.pools]
    )
    routes = table_of(settings.routes)
    read = WantedFields if routes.reads else Fields
    keyed = bool(routes.reads) or any(each.needs_sessions for each in policies)
    keys = (affinity.headers, affinity.body_fields) if keyed else ((), ())
    return Draft(
        settings,
        origins,
        policies,
        counter,
        SessionKeys(*keys, read, sorted(routes.edits)) if keyed or routes.edits else None,
        routes,
        certificates,
    )


def configure(
    new: Draft,
    loop: asyncio.AbstractEventLoop,
    names: Names,
    known: Iterable[Member] = (),
    counting: Counting | None = None,
    running: Fleet | None = None,
    now: Callable[[], float] = monotonic,
    threads: HandshakeThreads | None = None,
) -> Configuration:
    """The configuration that a draft describes, with what it keeps of the running one.

    It keeps those `known` backends that it names again, and the policies of `running` pools that
    keep theirs. `counting` is the running one, for a draft that has no other counter. Changes
    nothing: `Configuration.apply` gives what is kept its new settings.
    """
    settings = new.settings
    members = _members(new, loop, names, known, now, threads)
    fleet = _fleet(new, members, running)
    return Configuration(
        settings=settings,
        origins=new.origins,
        fleet=fleet,
        policies=new.policies,
        connections={each.name: pool for pool_members in members for each, pool in pool_members},
        authorizations={
            each.name: key
            for pool in settings.pools
            for each in pool.backends
            if (key := _authorization(pool, each)) is not None
        },
        credentials={
            each.name: _credentials(pool, each, tenants=bool(settings.tenants))
            for pool in settings.pools
            for each in pool.backends
        },
        certificates=new.certificates,
        tenants=Tenants(settings.tenants, authority=new.certificates.client_authority),
        sessions=new.sessions,
        session_pools=frozenset([pool.name for pool in fleet.pools if pool.policy.needs_sessions]),
        prefixes=any(pool.policy.needs_prefixes and len(pool.backends) > 1 for pool in fleet.pools),
        paths=Paths(settings.paths, settings.listen.prefix),
        routes=new.routes,
        counting=Counting(loop, new.counter) if new.counter is not None else counting,
    )


def _members(
    new: Draft,
    loop: asyncio.AbstractEventLoop,
    names: Names,
    known: Iterable[Member],
    now: Callable[[], float],
    threads: HandshakeThreads | None,
) -> list[list[Member]]:
    """The backends of each pool: the known ones that it names again, and new ones."""
    known_by = {(each.pool, each.name, each.url): (each, pool) for each, pool in known}
    connect_timeout_s = new.settings.timeouts.connect_s

    def member(pool: PoolSettings, named: BackendSettings) -> Member:
        url = named.url.rstrip("/")
        if member := known_by.get((pool.name, named.name, url)):
            return member
        return Backend(named.name, url, pool.name, named.weight), ConnectionPool(
            loop,
            url,
            connect_timeout_s=connect_timeout_s,
            name=named.name,
            names=names,
            threads=threads,
            tls=new.certificates.pools.get(pool.name),
            now=now,
        )

    return [[member(pool, each) for each in pool.backends] for pool in new.settings.pools]


def _fleet(new: Draft, members: list[list[Member]], running: Fleet | None) -> Fleet:
    """The pools, with their members and with the policies that they keep."""
    learnt: dict[tuple[str, type], Policy] = {}
    for known in running.pools if running is not None else ():
        learnt[known.name, type(known.policy)] = known.policy
    return Fleet(
        tuple(
            [
                Pool(
                    pool.name,
                    tuple([backend for backend, _ in its]),
                    learnt.get((pool.name, type(policy)), policy),
                    frozenset(pool.models),
                    pool.max_requests,
                    pool.admission,
                )
                for pool, policy, its in zip(new.settings.pools, new.policies, members, strict=True)
            ]
        )
    )


def _authorization(pool: PoolSettings, backend: BackendSettings) -> bytes | None:
    """The key that probes show a backend."""
    key = backend.api_key or pool.api_key
    return b"Bearer " + key.get_secret_value().encode() if key is not None else None


def _credentials(
    pool: PoolSettings, backend: BackendSettings, *, tenants: bool
) -> tuple[bool, bytes | None]:
    """Whether a backend gets the client's key, and the one that it gets in its place."""
    whose = pool.forward_authorization or ("pool" if tenants else "client")
    return whose == "client", None if whose == "none" else _authorization(pool, backend)
