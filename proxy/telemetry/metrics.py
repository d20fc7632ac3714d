"""The counters of penstock: plain integers on the hot path, families only for a scrape.

A counter of `prometheus_client` costs microseconds for each call. Its rendering takes
tens of milliseconds for a large fleet and blocks the loop, in a thread too, because of
the interpreter lock. So the data plane adds integers. A scrape turns them into families
(`exposition`), which are rendered in slices.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from time import monotonic
from typing import Final

from penstock.balancing.backend import Backend
from penstock.balancing.slo.slo import Slo
from penstock.proxy.telemetry.pool_metrics import (
    LATENCY_S,
    OVERHEAD_S,
    RATIO,
    WAIT_RATIO,
    Histogram,
    PoolMetrics,
    Times,
)
from penstock.proxy.telemetry.usage import TenantUsage

WINDOW_S: Final = 600.0
# How often the present state is remembered: the window is exact to this.
SAMPLE_S: Final = 10.0
HOUR_S: Final = 3_600.0


class _Pool:
    """The cost of one pool until `until_s`, at `per_hour` from then on. None: unknown."""

    def __init__(self) -> None:
        self.per_hour: float | None = None
        self.total = 0.0
        self.until_s = 0.0
        self.samples: deque[tuple[float, float, int]] = deque()  # time, cost and tokens until then

    def grow(self, now_s: float) -> float:
        if self.per_hour is not None:
            self.total += self.per_hour * max(0.0, now_s - self.until_s) / HOUR_S
        self.until_s = max(self.until_s, now_s)
        return self.total


class Costs:
    """The costs of all pools that have ever had one. Their number is that of the configuration.

    What the backends of each pool cost since the start, and for a thousand tokens.

    A backend costs as much when it is idle or out of order. So the cost grows with time alone, at
    what the configuration says at that moment. A price is the cost of the last WINDOW_S, over the
    tokens whose requests ended in that time. It is unknown while there were none.
    """

    def __init__(self) -> None:
        self._pools: dict[str, _Pool] = {}
        self._sampled_s = float("-inf")

    @property
    def pools(self) -> list[str]:
        """The pools whose cost is known, or was."""
        return list(self._pools)

    def follow(
        self, per_hour: Mapping[str, float], tokens: Callable[[str], int], now_s: float
    ) -> None:
        """Each pool's backends together cost this much from now on. `tokens`: of a pool so far."""
        for name, pool in self._pools.items():
            pool.grow(now_s)
            if name not in per_hour:
                pool.per_hour = None
                pool.samples.clear()
        for name, cost in per_hour.items():
            found = self._pools.setdefault(name, _Pool())
            found.grow(now_s)
            found.per_hour = cost
            if not found.samples:
                found.samples.append((now_s, found.total, tokens(name)))

    def observe(self, tokens: Callable[[str], int], now_s: float) -> None:
        """Remember the present state now and then. Call it at least each SAMPLE_S."""
        if now_s - self._sampled_s < SAMPLE_S:
            return
        self._sampled_s = now_s
        for name, pool in self._pools.items():
            if pool.per_hour is not None:
                pool.samples.append((now_s, pool.grow(now_s), tokens(name)))
                while len(pool.samples) > 1 and pool.samples[1][0] <= now_s - WINDOW_S:
                    pool.samples.popleft()

    def total(self, pool: str, now_s: float) -> float:
        """What the pool has cost since the start."""
        return self._pools[pool].grow(now_s)

    def per_1k_tokens(self, pool: str, tokens: int, now_s: float) -> float | None:
        """The price of a thousand tokens. `tokens`: of the pool so far. None: unknown."""
        found = self._pools[pool]
        if found.per_hour is None or not found.samples:
            return None
        _, cost, before = found.samples[0]
        if tokens <= before:
            return None
        return 1_000.0 * (found.grow(now_s) - cost) / (tokens - before)

    def forget(self, pool: str) -> None:
        """The pool is gone."""
        self._pools.pop(pool, None)


COPY_S: Final = 60.0
COPIES: Final = 3


class Growth:
    """How much counters grew in the last two to three minutes. Their number must have a limit.

    What is counted pays nothing for it: once a minute `look` is told all counts, and the oldest of
    three copies is what the present ones are compared with.
    """

    def __init__(self) -> None:
        self._copies: deque[tuple[float, Mapping[str, int]]] = deque(maxlen=COPIES)

    def is_due(self, now_s: float) -> bool:
        """Whether it is time for another copy."""
        return not self._copies or now_s >= self._copies[-1][0] + COPY_S

    def look(self, counts: Mapping[str, int], now_s: float) -> None:
        """Keep a copy. The first one is that of the start, when nothing was counted."""
        self._copies.append((now_s, counts if self._copies else {}))

    def since(self, counts: Mapping[str, int]) -> dict[str, int]:
        """How much each has grown, the most first. Without those that have not."""
        before = self._copies[0][1] if self._copies else {}
        grown = {name: count - before.get(name, 0) for name, count in counts.items()}
        ordered = sorted(grown.items(), key=lambda each: -each[1])
        return {name: count for name, count in ordered if count > 0}


# The most values of a label that clients or backends choose. Further values become `other`.
LABEL_VALUES_MAX: Final = 256


class Counter:
    """A count per label values. Values beyond the limit are counted as `other`."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, ...], int] = {}

    def add(self, *labels: str, count: int = 1) -> None:
        values = self._values
        known = values.get(labels)
        if known is not None:
            values[labels] = known + count
        elif len(values) < LABEL_VALUES_MAX:
            values[labels] = count
        else:
            other = ("other",) * len(labels)
            values[other] = values.get(other, 0) + count

    def keep(self, at: int, known: Collection[str]) -> None:
        """Drop the counts whose label at this place is not one of these, nor `other`."""
        for labels in list(self._values):
            if labels[at] not in known and labels[at] != "other":
                del self._values[labels]

    def __getitem__(self, labels: tuple[str, ...]) -> int:
        return self._values.get(labels, 0)

    def items(self) -> Iterator[tuple[tuple[str, ...], int]]:
        return iter(sorted(self._values.items()))


class Metrics:
    """All counters of a process. `pools` has an entry for each pool and "" for no pool."""

    def __init__(self, pools: list[str], now: Callable[[], float] = monotonic) -> None:
        self.now = now
        self.pools = {name: PoolMetrics() for name in (*pools, "")}
        self.overhead_s = Histogram(OVERHEAD_S)
        self.loop_lag_s = Histogram(OVERHEAD_S)
        self.estimate_ratio = Histogram(RATIO)
        self.attempts = Counter()
        self.affinity = Counter()
        # By route: the stage of its canary, and its share in percent.
        self.canaries: Callable[[], Iterable[tuple[str, str, float]]] = tuple
        self.route_requests = Counter()  # by route, and where they went
        self.adapter_loads = Counter()  # by pool, and whether it was loaded
        self.newcomers = Counter()  # by pool, and what became of its new backends
        self.mirror_requests = Counter()  # by route, and what became of the copy
        self.mirror_ends = Counter()  # by route, and which answer was cut
        # By route: of a copy over its original.
        self.mirror_first_token: dict[str, Histogram] = {}
        self.mirror_tokens: dict[str, Histogram] = {}
        self.labels = Counter()  # by how a request came to one, or did not
        self.classifier_s = Histogram(LATENCY_S)
        self.client_aborts = Counter()
        self.stream_failures = Counter()
        self.shed = Counter()
        self.shed_growth = Growth()  # by reason
        self.rate_limited = Counter()  # by tenant
        self.count_ended: Callable[[], None] = lambda: None  # those that are not counted yet
        # By class: how many requests wait now, and their prompt tokens.
        self.queued: Callable[[], Iterable[tuple[str, int, int]]] = tuple
        self.held: Callable[[], Iterable[tuple[str, int, int]]] = tuple
        # By pool and class: how near it is to refusing.
        self.pressures: Callable[[], Iterable[tuple[str, str, float]]] = tuple
        # The kind of each pool's verdict.
        self.bottlenecks: Callable[[], Iterable[tuple[str, str]]] = tuple
        self.slos: Callable[[], Iterable[Slo]] = tuple  # with their states up to date
        self.degraded = Counter()  # by what was cut
        self.usage = TenantUsage()
        # Whether a tenant is in the configuration, or has requests that run.
        self.knows_tenant: Callable[[str], bool] = lambda _: True
        # The tenants and classes of the configuration. None: any.
        self._known: tuple[Collection[str], Collection[str]] | None = None
        self.costs = Costs()
        # By pool: the kind of its source, how many backends that told, and how old that is.
        self.discovered: Callable[[], Iterable[tuple[str, str, int, float | None]]] = tuple
        # What each own certificate is for, its pool, and its end as Unix time.
        self.certificates: Callable[[], Iterable[tuple[tuple[str, str], float]]] = tuple
        self.admitted = Counter()  # by class, and whether they had to wait
        self.predicted_ratio = Histogram(WAIT_RATIO)
        self.queue_wait_s: dict[str, Histogram] = {}  # by class, of those that had to wait
        self.access_lines_dropped = 0
        self.trace_spans = Counter()  # by what became of them
        self.traces_capped = 0
        # Set four times a second by `Pressure`.
        self.clients = 0
        self.tasks = 0
        self.overload = ""
        self.config_reload_success = True
        self.config_reload_success_timestamp_seconds = 0.0
        self.tls_handshakes_failed = 0

    def of(self, pool: str) -> PoolMetrics:
        """The counters of a pool. Those of no pool ("") when it is gone."""
        return self.pools.get(pool) or self.pools[""]

    def waited(self, service_class: str, seconds: float) -> None:
        """Count a request that had to wait for room at a backend."""
        waits = self.queue_wait_s.get(service_class)
        if waits is None:
            waits = self.queue_wait_s[service_class] = Histogram(LATENCY_S)
        waits.observe(seconds)

    def mirrored(self, ratios: dict[str, Histogram], route: str) -> Histogram:
        """The ratios of a route's copies. Routes beyond the limit are counted as `other`."""
        if route not in ratios and len(ratios) >= LABEL_VALUES_MAX:
            route = "other"
        if route not in ratios:
            ratios[route] = Histogram(RATIO)
        return ratios[route]

    def times(self, backend: Backend, model: str | None) -> Times:
        """The times of a model's requests at a backend, which may not list it."""
        known = model if model is not None and backend.lists(model) else None
        return self.of(backend.pool).times(backend.name, known)

    def attempted(self, times: Times | None, reason: str) -> None:
        """Count an attempt by how it ended. `times`: those at its backend."""
        self.attempts.add(reason)
        if times is not None:
            attempts = times.backend.attempts
            attempts[reason] = attempts.get(reason, 0) + 1

    def shed_by_reason(self) -> dict[str, int]:
        """How many requests were refused since the start, of all classes together."""
        reasons: dict[str, int] = {}
        for labels, count in self.shed.items():
            reasons[labels[0]] = reasons.get(labels[0], 0) + count
        return reasons

    def measure(self, now_s: float) -> None:
        """Note what grows. Call it at least once a minute."""
        if self.shed_growth.is_due(now_s):
            self.shed_growth.look(self.shed_by_reason(), now_s)
            self._forget_unknown()  # requests that still ran may have counted again

    def keep(self, tenants: Collection[str], classes: Collection[str]) -> None:
        """These are all from now on. Drop the series of other tenants and classes.

        What tenants used is kept, for they may come back. It is told of known ones only.
        """
        self._known = tenants, classes
        self._forget_unknown()

    def _forget_unknown(self) -> None:
        if self._known is None:
            return
        tenants, classes = self._known
        self.rate_limited.keep(0, tenants)
        self.shed.keep(1, classes)
        self.admitted.keep(0, classes)
        for name in [each for each in self.queue_wait_s if each not in classes]:
            del self.queue_wait_s[name]

    def add_pools(self, names: Iterable[str]) -> None:
        """Add an entry for each pool that has none."""
        for name in names:
            if name not in self.pools:
                self.pools[name] = PoolMetrics()

    def forget_backend(self, pool: str, backend: str) -> None:
        """Drop the series of a backend that is gone from its pool."""
        self.count_ended()
        self.of(pool).forget(backend)

    def forget_pool(self, name: str) -> None:
        """Drop the series of a pool that is gone."""
        self.pools.pop(name, None)
        self.newcomers.keep(0, self.pools)
        self.adapter_loads.keep(0, self.pools)
        self.costs.forget(name)

    def reloaded(self, at_unix_s: float) -> None:
        """A configuration was read without errors and is in use."""
        self.config_reload_success = True
        self.config_reload_success_timestamp_seconds = at_unix_s

    def handshake_failed(self) -> None:
        self.tls_handshakes_failed += 1
