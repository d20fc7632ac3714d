"""The counters of penstock: plain integers on the hot path, families only for a scrape.

A counter of `prometheus_client` costs microseconds for each call. Its rendering takes
tens of milliseconds for a large fleet and blocks the loop, in a thread too, because of
the interpreter lock. So the data plane adds integers. A scrape turns them into families
(`exposition`), which are rendered in slices.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from penstock.balancing.slo.slo import Slo
from penstock.proxy.telemetry.usage import TenantUsage

# The most values of a label that clients or backends choose. Further values become `other`.
LABEL_VALUES_MAX: Final = 256

LATENCY_S: Final[tuple[float, ...]] = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 600.0,
)  # fmt: skip
ITL_S: Final[tuple[float, ...]] = (
    0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5,
)  # fmt: skip
OVERHEAD_S: Final[tuple[float, ...]] = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1.0,
)  # fmt: skip
RATIO: Final[tuple[float, ...]] = (
    0.25,
    0.5,
    0.67,
    0.8,
    0.9,
    0.95,
    1.0,
    1.05,
    1.1,
    1.25,
    1.5,
    2.0,
    4.0,
)


# Predicted over true waits.
WAIT_RATIO: Final[tuple[float, ...]] = (
    0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0,
)  # fmt: skip


class Histogram:
    """Counts per bucket; `bounds` are upper bounds, the last bucket is +Inf."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Add `count` samples of `value`."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, as the exposition wants them."""
        cumulative = 0
        rows = []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            cumulative += count
            rows.append(("+Inf" if bound == float("inf") else str(bound), float(cumulative)))
        return rows


class Counter:
    """A count per label values. Values beyond the limit are counted as `other`."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[tuple[str, ...], int] = {}

    def add(self, *labels: str, count: int = 1) -> None:
        values = self._values
        if labels in values:
            values[labels] += count
        elif len(values) < LABEL_VALUES_MAX:
            values[labels] = count
        else:
            other = ("other",) * len(labels)
            values[other] = values.get(other, 0) + count

    def __getitem__(self, labels: tuple[str, ...]) -> int:
        return self._values.get(labels, 0)

    def items(self) -> Iterator[tuple[tuple[str, ...], int]]:
        return iter(sorted(self._values.items()))


class PoolMetrics:
    """The measurements of one pool. Held by reference, so that no chunk looks up a label."""

    __slots__ = (
        "cached_tokens",
        "completion_tokens",
        "duration_s",
        "itl_s",
        "prompt_tokens",
        "requests",
        "ttft_s",
    )

    def __init__(self) -> None:
        self.requests: dict[tuple[str, int], int] = {}  # (backend, status): both are bounded
        self.duration_s = Histogram(LATENCY_S)
        self.ttft_s = Histogram(LATENCY_S)
        self.itl_s = Histogram(ITL_S)
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cached_tokens = 0

    def request(self, backend: str, status: int, duration_s: float) -> None:
        """Count one finished request."""
        key = (backend, status)
        self.requests[key] = self.requests.get(key, 0) + 1
        self.duration_s.observe(duration_s)


class Metrics:
    """All counters of a process. `pools` has an entry for each pool and "" for no pool."""

    def __init__(self, pools: list[str]) -> None:
        self.pools = {name: PoolMetrics() for name in (*pools, "")}
        self.overhead_s = Histogram(OVERHEAD_S)
        self.loop_lag_s = Histogram(OVERHEAD_S)
        self.estimate_ratio = Histogram(RATIO)
        self.attempts = Counter()
        self.affinity = Counter()
        self.client_aborts = Counter()
        self.stream_failures = Counter()
        self.shed = Counter()
        self.rate_limited = Counter()  # by tenant
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
        self.admitted = Counter()  # by class, and whether they had to wait
        self.predicted_ratio = Histogram(WAIT_RATIO)
        self.queue_wait_s: dict[str, Histogram] = {}  # by class, of those that had to wait
        self.access_lines_dropped = 0
        # Set four times a second by `Pressure`.
        self.clients = 0
        self.tasks = 0
        self.overload = ""
        self.reload_success = True
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

    def predicted(self, predicted_s: float, true_s: float) -> None:
        """A request that had to wait has had its first token after that time."""
        if true_s > 0.0:
            self.predicted_ratio.observe(predicted_s / true_s)

    def answered(self, *, refused_midway: bool) -> None:
        """Count an answer that was passed on unchanged."""
        self.attempts.add("ok")
        if refused_midway:
            self.stream_failures.add("refused")

    def add_pools(self, names: Iterable[str]) -> None:
        """Add an entry for each pool that has none."""
        for name in names:
            if name not in self.pools:
                self.pools[name] = PoolMetrics()

    def forget_backend(self, pool: str, backend: str) -> None:
        """Drop the series of a backend that is gone from its pool."""
        requests = self.of(pool).requests
        for key in [key for key in requests if key[0] == backend]:
            del requests[key]

    def forget_pool(self, name: str) -> None:
        """Drop the series of a pool that is gone."""
        self.pools.pop(name, None)

    def handshake_failed(self) -> None:
        self.tls_handshakes_failed += 1
