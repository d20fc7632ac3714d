"""A plain record of what all connections and requests of the process share.

Code that needs a part takes that part. The work on the parts is done elsewhere.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from time import monotonic, time
from typing import Any

from penstock.balancing.adapters import AdapterLoads
from penstock.balancing.admission.controller import TICK_S, Admission
from penstock.balancing.admission.degradation import Degradation, highest_pressure
from penstock.balancing.admission.dispatch import Told
from penstock.balancing.backend import Backend
from penstock.balancing.fair_table import KeyTable
from penstock.balancing.gate import Gate
from penstock.balancing.lease import Lease
from penstock.balancing.load import KeptRoom
from penstock.balancing.outliers.crashing_requests import Deaths, Poison
from penstock.balancing.outliers.penalties import Cause
from penstock.balancing.output_length import OutputLength
from penstock.balancing.pool_costs import GpuFloor, PoolCosts
from penstock.balancing.reader import Reader
from penstock.balancing.slo.slo import Slos
from penstock.balancing.tokens import TokenEstimator
from penstock.proxy.data.adapters import Adapters, Load, cannot_load
from penstock.proxy.data.background import Background
from penstock.proxy.data.bodies import Bodies
from penstock.proxy.data.budgets import Budgets
from penstock.proxy.data.canaries import Canaries
from penstock.proxy.data.clients import Clients
from penstock.proxy.data.configuration import Configuration
from penstock.proxy.data.labelling import Labelling
from penstock.proxy.data.memory import Memory
from penstock.proxy.data.mirrors import Mirrors
from penstock.proxy.data.newcomers import Newcomers
from penstock.proxy.data.overload import Overload, Running
from penstock.proxy.data.refusals import PRIORITY, Refusals
from penstock.proxy.data.request import Request
from penstock.proxy.data.service_classes import ServiceClasses
from penstock.proxy.data.turn_thread import TurnThread
from penstock.proxy.errors.backend import BackendError
from penstock.proxy.errors.error import PenstockError
from penstock.proxy.telemetry.access_log import AccessLog
from penstock.proxy.telemetry.metrics import Metrics
from penstock.proxy.telemetry.recent import Recent
from penstock.proxy.tracing.trace import Tracer
from penstock.proxy.wire.client_address import TrustedProxies
from penstock.proxy.wire.deadline import LATE_S
from penstock.proxy.wire.handshakes import ClientHandshakes
from penstock.proxy.wire.ledger import Ledger
from penstock.proxy.wire.long_reads import AnswerReads
from penstock.proxy.wire.pulse import BEAT_S, Sleep
from penstock.proxy.wire.records import RecordReads
from penstock.proxy.wire.scheduler import Scheduler


def _nothing(backend: Backend, error: BackendError, cause: Cause) -> None:
    """The default when nobody watches the backends."""


# A request that has ended, the lease of its last attempt, and what its client was told instead.
Uncounted = tuple[Request, Lease | None, PenstockError | None]


class DataPlane:
    """The shared parts, and the configuration in use."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        loop: asyncio.AbstractEventLoop,
        rng: Random,
        metrics: Metrics,
        on_failure: Callable[[Backend, BackendError, Cause], None] = _nothing,
        load_adapter: Load = cannot_load,
        now: Callable[[], float] = monotonic,
        wall: Callable[[], float] = time,
        memory: Memory | None = None,
    ) -> None:
        """`wall`: Unix time. `memory`: what the process may have. None: no limit."""
        self.loop = loop
        self.memory = memory or Memory()
        self.now = now
        self.wall = wall
        self.began_s = now()
        self.rng = rng
        self.metrics = metrics
        self.access_log: AccessLog | None = None
        self.tracer: Tracer | None = None
        self.recent = Recent()
        self.uncounted: list[Uncounted] = []  # requests that have ended: see `account.py`
        self.failed = on_failure
        self.estimator, self.outputs = TokenEstimator(rng.getrandbits(64)), OutputLength()
        self.gate = Gate(lambda: self.fleet, rng)
        self.classes = ServiceClasses(configuration.settings)
        self.admission = Admission(
            self.gate, lambda: self.fleet, rng, lambda: self.wakes.soon(), self.classes.rules
        )
        self.pool_costs = PoolCosts(self.gate, lambda: self.fleet, self.admission)
        self.wakes = Wakes(loop, now, self.admission)
        loads = AdapterLoads(self.gate, lambda: self.fleet)
        self.adapters = Adapters(loop, loads, self._waiting_for, metrics, now, load_adapter)
        self.background = Background(loop, now, metrics.usage)
        self.mirrors, self.labelling = Mirrors(loop, metrics, now), Labelling(loop, metrics, now)
        self.degradation, self.slos, self.canaries = Degradation(), Slos(now), Canaries(now)
        metrics.queued, metrics.pressures = self.queued, self.pressures
        metrics.held, metrics.knows_tenant = self.held, self._knows_tenant
        metrics.slos, metrics.canaries = self.slos.evaluated, self.canaries.standings
        metrics.certificates = lambda: self.certificates.expiries
        self.floor, self.budgets = GpuFloor(), Budgets(metrics)
        self.newcomers = Newcomers(now, metrics.newcomers)
        self.salt = rng.getrandbits(64)  # of the queues of clients without a key
        self.deaths, self.poison = Deaths(), Poison()
        self.scheduler, self.ledger = Scheduler(loop, now=now), Ledger(now)
        self.decoders = TurnThread(loop, "decoding")
        # Anybody may open connections, from many addresses. So handshakes have a scheduler of their
        # own beside that of the requests, and each has its share of a turn.
        self.handshakes = Scheduler(loop, now=now)
        self.client_handshakes = ClientHandshakes(loop)  # with those asked for a certificate
        self.record_reads = RecordReads(loop, waiting=self.ledger)
        self.answer_reads = AnswerReads(loop, now)
        self.uploads = Scheduler(loop, now=now)  # the pieces of large bodies to backends
        self.clients, self.bodies = Clients(now), Bodies(now)
        self.running = Running()
        self.kept = KeptRoom()
        self.overload = Overload()
        self.refusals = Refusals(self.overload, metrics, rng, now)
        self.sleep = Sleep()
        self.draining = False  # health checks say so; requests are still served
        self.closing = False  # the grace period is over: no new clients
        self.configuration = configuration
        self.use(configuration)

    def use(self, configuration: Configuration) -> None:
        """Use a configuration from the next request on. One step: no request sees half of it."""
        if configuration.origins is not self.configuration.origins:  # more than found backends
            self.mirrors.end_all()
        self.metrics.add_pools(pool.name for pool in configuration.fleet.pools)
        configuration.apply()
        if configuration.prefixes and not self.configuration.prefixes:
            for backend in configuration.fleet.backends:
                backend.prefixes_looked_for()
        authority = configuration.certificates.client_authority
        if authority != self.configuration.certificates.client_authority:
            for client in self.clients:
                client.outdate()
        self.configuration = configuration
        # Requests read these often, so each is one attribute away.
        settings = self.settings = configuration.settings
        self.limits = settings.limits
        self.listen = settings.listen
        self.timeouts = settings.timeouts
        self.fleet = configuration.fleet
        self.connections = configuration.connections
        for each in self.connections.values():
            each.reads = self.answer_reads
            each.uploads = self.uploads
        self.certificates = configuration.certificates
        self.credentials = configuration.credentials
        self.tenants = configuration.tenants
        self.reader = Reader(
            self.estimator,
            outputs=self.outputs,
            sessions=configuration.sessions,
            prefixes=configuration.prefixes,
            caps=bool(settings.admission.degrade) or "answer_limits" in configuration.routes.reads,
            wants=bool(configuration.routes.reads),
            labels="label" in configuration.routes.reads,
        )
        self.counting = configuration.counting
        self.routes = configuration.routes
        self.adapters.follow(self.routes.adapters)
        wanted = "label" in self.routes.reads
        self.labelling.use(settings.classifier, self.certificates.classifier, wanted=wanted)
        self.canaries.follow(settings.routes, self.routes.rules)
        self.newcomers.follow(configuration.fleet, settings.health.newcomers)
        self.session_pools = configuration.session_pools
        self.paths = configuration.paths
        proxies = settings.listen.trusted_proxies
        self.proxies = TrustedProxies(proxies) if proxies else None
        self.classes = ServiceClasses(settings)
        self.admission.follow(self.classes.rules)
        self.degradation.follow(self.classes.steps)
        self.budgets.follow(settings, self.now())
        self._tenant_names = frozenset([each.name for each in settings.tenants])
        self.metrics.keep(self._tenant_names, (*self.classes.names, PRIORITY))
        self.slos.follow(settings)
        self.metrics.costs.follow(configuration.costs_per_hour, self._tokens_of, self.now())
        self._share_memory()
        self.clients.use(settings.limits.connections, keyed=configuration.tenants.asks)
        self.refusals.probe_interval_s = settings.health.interval_s

    def queued(self) -> list[tuple[str, int, int]]:
        """How many requests of each class wait, and their tokens."""
        return [(name, *self.admission.queued(r)) for r, name in enumerate(self.classes.names)]

    def held(self) -> list[tuple[str, int, int]]:
        """How many requests wait for a backend of each pool, and their prompt tokens."""
        return [(each.name, *self.admission.parked(each.name)) for each in self.fleet.pools]

    def _knows_tenant(self, name: str) -> bool:
        return name in self._tenant_names or self.running.has(name)

    def measure(self, now_s: float) -> None:
        """Measure what grows with time alone. Call it at least once a second."""
        self.metrics.costs.observe(self._tokens_of, now_s)
        self.metrics.measure(now_s)
        self.canaries.look(now_s)
        self.newcomers.look(now_s)
        self.floor.look(self.fleet.pools, self._waiting_for, now_s)

    def _waiting_for(self, pool: str) -> int:
        found = self.admission.pools.get(pool)
        return found.queue.waiting if found is not None else 0

    def _tokens_of(self, pool: str) -> int:
        return self.metrics.of(pool).tokens

    def pressures(self) -> list[tuple[str, str, float]]:
        """The pressure in each pool, by class: that of the client that would wait longest."""
        found, classes = [], self.classes
        for pool in self.fleet.pools if self.admission.enabled else ():
            queue = self.admission.pools.get(pool.name)
            for rank, name in enumerate(classes.names):
                pressed = 0.0
                if queue is not None:
                    pressed = highest_pressure(queue, rank, classes.max_wait_s[rank])
                found.append((pool.name, name, pressed))
        return found

    def _share_memory(self) -> None:
        limits, memory = self.limits, self.memory
        memory.use(limits.memory_bytes)
        part_bytes = memory.part_bytes
        self.bodies_bytes = min(limits.bodies_bytes, part_bytes)
        self.body_bytes_max = min(limits.body_bytes, self.bodies_bytes)
        self.kept.limit_bytes = self.ledger.limit_bytes = part_bytes
        for backend in self.fleet.backends:
            backend.kept.room = self.kept
        homes = [pool.policy.homes for pool in self.fleet.pools]
        self.tables: list[KeyTable[Any]] = [self.gate.owners.table]
        self.tables += [each for each in homes if each is not None]
        for table in self.tables:
            table.limit(memory.entries(len(self.tables)))


class Wakes:
    """Wakes one `Admission`, to look at what waits, whenever room may have come free.

    Many leases end in one turn of the loop. So a wake comes once, at the end of that turn.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, now: Callable[[], float], admission: Admission
    ) -> None:
        self._loop = loop
        self._now = now
        self._admission = admission
        self._soon = False
        self._due_s = 0.0  # when the timer comes
        self._untold: deque[Told] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def soon(self) -> None:
        """Room may have come free, or something has begun to wait."""
        if not self._soon:
            self._soon = True
            self._loop.call_soon(self._wake)

    def _begin_timer(self, after_s: float) -> None:
        self._due_s = self._now() + after_s
        self._timer = self._loop.call_later(after_s, self._tick)

    def _wake(self) -> None:
        self._soon = False
        if self._timer is not None and self._now() - self._due_s > LATE_S:
            return  # did the process sleep? The pulse tells that before the timer comes
        if self._timer is None and self._admission.waiting:
            self._begin_timer(TICK_S)
        outcomes: list[Told] = []
        try:
            self._admission.wake(self._now(), outcomes)
        finally:
            self._untold.extend(outcomes)
            self._tell()

    def _tell(self) -> None:
        try:
            while self._untold:
                request, outcome = self._untold.popleft()
                request.ready(outcome)
        finally:
            if self._untold:  # a fault at one request is not the end of others
                self.soon()

    def _tick(self) -> None:
        if self._now() - self._due_s > LATE_S:
            self._begin_timer(2.0 * BEAT_S)
        else:
            self._timer = None
            self._wake()
