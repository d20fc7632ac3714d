"""Turns the plain counters into prometheus-client's families. `family_table` describes them.

`request_families`: those of requests, by pool, and by backend and model where that is bounded.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import InfoMetricFamily
from prometheus_client.registry import Collector

from penstock import proxy
from penstock.balancing.backend import AdminState, Backend, State
from penstock.balancing.slo.slo import Slo
from penstock.balancing.speed.compare import slower
from penstock.balancing.verdict.cause import Kind
from penstock.proxy.telemetry.exposition import Row, histograms, parts, single
from penstock.proxy.telemetry.family_table import FAMILIES
from penstock.proxy.telemetry.log_lines import lines_dropped
from penstock.proxy.telemetry.metrics import Metrics
from penstock.proxy.telemetry.pool_metrics import PROMPT_CLASSES, PoolMetrics, Times

# In place of a pool or a class where an SLO is for all. No name has this character.
ALL: Final = "*"


def slo_families(slos: Iterable[Slo]) -> Iterator[Metric]:
    """`slos`: with their counts and states up to date."""
    compliance: list[Row] = []
    burns: list[Row] = []
    states: list[Row] = []
    requests: list[Row] = []
    for slo in slos:
        for each in slo.objectives:
            labels = (slo.pool or ALL, slo.service_class or ALL, each.goal.name)
            if (share := each.compliance) is not None:
                compliance.append((labels, share))
            burns += [((*labels, window), rate) for window, rate in each.burn_rates.items()]
            states.append((labels, each.state))
            requests.append(((*labels, "good"), each.windows.good))
            requests.append(((*labels, "bad"), each.windows.bad))
    yield from parts("slo_compliance_ratio", compliance)
    yield from parts("slo_burn_rate", burns)
    yield from parts("slo_state", states)
    yield from parts("slo_requests", requests)


# Each backend has the times of each of its models, so they have fewer buckets than the pool's.
BACKEND_LATENCY_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 40.0, 160.0)
BACKEND_ITL_S: Final = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 1.0)

Pools = Mapping[str, PoolMetrics]
_OF_POOL: Final = {
    "request_duration_seconds": "duration_s",
    "time_to_first_token_seconds": "ttft_s",
    "inter_token_latency_seconds": "itl_s",
}
_OF_BACKEND: Final = {
    "backend_request_duration_seconds": ("duration_s", BACKEND_LATENCY_S),
    "backend_time_to_first_token_seconds": ("ttft_s", BACKEND_LATENCY_S),
    "backend_inter_token_latency_seconds": ("itl_s", BACKEND_ITL_S),
}


def request_families(every: Pools) -> Iterator[Metric]:
    """All families of requests, in parts. `every`: the pools, and "" for requests without one."""
    statuses = (
        ((name, backend, str(status) if status > 9 else f"{status}xx"), count)
        for name, pool in every.items()
        for (backend, status), count in list(pool.requests.items())
    )
    yield from parts("requests", statuses)
    pools = {name: pool for name, pool in every.items() if name}
    for family in ("prompt_tokens", "completion_tokens", "cached_tokens"):
        counts = [((name,), getattr(pool, family)) for name, pool in pools.items()]
        yield from parts(family, counts)
    for family, name in _OF_POOL.items():
        yield from histograms(family, (((who,), getattr(pools[who], name)) for who in pools))
    by_prompt = (
        ((name, prompt), histogram)
        for name, pool in pools.items()
        for prompt, histogram in zip(PROMPT_CLASSES, pool.ttft_by_prompt_s, strict=True)
    )
    yield from histograms("time_to_first_token_by_prompt_seconds", by_prompt)
    yield from _of_backends(pools)


def _of_backends(pools: Pools) -> Iterator[Metric]:
    yield from parts("backend_attempts", _counts(pools, attempts=True))
    yield from parts("backend_routed", _counts(pools, attempts=False))
    for family, (name, bounds) in _OF_BACKEND.items():
        rows = ((labels, getattr(times, name)) for labels, times in _times(pools))
        yield from histograms(family, rows, bounds)


def _counts(pools: Pools, *, attempts: bool) -> Iterator[Row]:
    """Copies, because the loop runs between two parts."""
    for name, pool in pools.items():
        for backend, counts in list(pool.backends.items()):
            told = counts.attempts if attempts else counts.routed
            for reason, count in sorted(told.items()):
                yield (name, backend, str(reason)), count


def _times(pools: Pools) -> Iterator[tuple[tuple[str, ...], Times]]:
    for name, pool in pools.items():
        for backend, counts in list(pool.backends.items()):
            for model, times in list(counts.times.items()):
                yield (name, backend, model), times


_LOADS: Final = {
    "backend_queued_prefill_tokens": "queued_prefill_tokens",
    "backend_active_decode_tokens": "active_decode_tokens",
    "backend_requests_in_flight": "requests_in_flight",
    "backend_gpu_floor_seconds": "gpu_floor_s",
}
# What an engine tells. An engine without a recent report has no series.
_REPORTED: Final = {
    "backend_engine_running": "running",
    "backend_engine_waiting": "waiting",
    "backend_kv_usage_ratio": "kv_usage",
    "backend_kv_capacity_tokens": "kv_tokens",
    "backend_preemptions": "preemptions",
    "backend_engine_prompt_tokens": "prompt_tokens",
    "backend_engine_steps": "steps",
    "backend_engine_step_tokens": "step_tokens",
    "backend_prefix_queries_tokens": "prefix_queries_tokens",
    "backend_prefix_hits_tokens": "prefix_hits_tokens",
}
# And what exporters tell of its GPUs, as long as it is recent.
_GPUS: Final = {
    "backend_gpu_utilization_ratio": "utilization",
    "backend_gpu_memory_used_bytes": "used_bytes",
    "backend_gpu_memory_free_bytes": "free_bytes",
}


def backend_families(backends: Sequence[Backend], now_s: float) -> Iterator[Metric]:
    """The families of single backends: load, health, speed, and what engines and GPUs tell."""
    for name, load in _LOADS.items():
        yield from parts(name, (((each.name,), float(getattr(each, load))) for each in backends))
    yield from parts(
        "backend_can_serve",
        (((each.pool, each.name), float(each.can_serve)) for each in backends),
    )
    states = (
        ((backend.name, state.value), float(backend.state is state))
        for backend in backends
        for state in State
    )
    yield from parts("backend_state", states)
    wanted = (
        ((backend.name, state.value), float(backend.admin_state is state))
        for backend in backends
        for state in AdminState
    )
    yield from parts("backend_admin_state", wanted)
    told = [(each.name, each.report) for each in backends]
    reports = [(name, each) for name, each in told if each is not None and each.freshness(now_s)]
    for name, field in _REPORTED.items():
        yield from parts(name, _known(reports, field))
    waiting = (
        ((name, reason), getattr(each, field))
        for name, each in reports
        for reason, field in (("capacity", "waiting_for_room"), ("deferred", "deferred"))
    )
    yield from parts("backend_engine_waiting_by_reason", waiting)
    yield from _speeds(backends, now_s)
    found = [(each.name, each.gpus) for each in backends]
    gpus = [(name, each) for name, each in found if each is not None and now_s < each.until_s]
    for name, field in _GPUS.items():
        yield from parts(name, _known(gpus, field))


def _known(told: Iterable[tuple[str, object]], field: str) -> Iterator[Row]:
    """A field of what each backend tells, where it is known."""
    for name, each in told:
        value = getattr(each, field)
        if value is not None:
            yield (name,), value


def _speeds(backends: Sequence[Backend], now_s: float) -> Iterator[Metric]:
    prefill = (
        ((each.name,), each.prefill_speed.work_per_s)
        for each in backends
        if each.prefill_speed.weight > 0.0
    )
    yield from parts("backend_prefill_tokens_per_second", prefill)
    decode = (
        ((each.name,), each.decode_speed.itl_s(each.decode_speed.usual_held_tokens))
        for each in backends
        if each.decode_speed.weight > 0.0
    )
    yield from parts("backend_decode_step_seconds", decode)
    cold = ((each.name, each.cold_start) for each in backends)
    yield from parts("backend_cold_start_seconds", _known(cold, "last_s"))
    yield from parts("backend_slowness_ratio", _slowness(backends, now_s))


def _slowness(backends: Sequence[Backend], now_s: float) -> Iterator[Row]:
    for _, peers in groupby(sorted(backends, key=attrgetter("pool")), attrgetter("pool")):
        for backend, pace in slower(tuple(peers), now_s):
            yield (backend.name, "prefill"), pace.prefill
            yield (backend.name, "decode"), pace.decode


class PenstockCollector(Collector):
    """Makes the families in parts. Parts of one family follow each other."""

    def __init__(
        self, metrics: Metrics, backends: Callable[[], Iterable[Backend]], *, secrets: bool = True
    ) -> None:
        """`backends()` returns the backends to report at that moment, each name once. `secrets`:
        whether series that name tenants or costs are told."""
        self._metrics = metrics
        self._secrets = secrets
        self._known = backends

    def collect(self) -> Iterator[Metric]:
        build = InfoMetricFamily("penstock_build", FAMILIES["build"].text)
        build.add_metric((), {"version": proxy.__version__, "build": proxy.build()})
        yield build
        yield from request_families(dict(self._metrics.pools))
        yield from backend_families(tuple(self._known()), self._metrics.now())
        yield from self._requests()
        yield from self._canaries()
        yield from self._queue()
        yield from self._process()
        yield from slo_families(self._metrics.slos())
        if self._secrets:
            yield from self._usage()
            yield from self._costs()

    def _usage(self) -> Iterator[Metric]:
        knows = self._metrics.knows_tenant
        used = [each for each in self._metrics.usage.items() if knows(each[0])]
        yield from parts("tenant_requests", (((who, model), u.requests) for who, model, u in used))
        tokens = (
            ((who, model, kind), count)
            for who, model, u in used
            for kind, count in (
                ("prompt", u.prompt_tokens),
                ("cached", u.cached_tokens),
                ("completion", u.completion_tokens),
            )
        )
        yield from parts("tenant_tokens", tokens)
        yield from parts("rate_limited", self._metrics.rate_limited.items())

    def _costs(self) -> Iterator[Metric]:
        costs, now_s = self._metrics.costs, self._metrics.now()
        totals = [((pool,), costs.total(pool, now_s)) for pool in costs.pools]
        yield from parts("cost", totals)
        prices: list[Row] = []
        for pool in costs.pools:
            price = costs.per_1k_tokens(pool, self._metrics.of(pool).tokens, now_s)
            if price is not None:
                prices.append(((pool,), price))
        yield from parts("cost_per_1k_tokens", prices)

    def _requests(self) -> Iterator[Metric]:
        metrics = self._metrics
        for name in (
            "attempts",
            "affinity",
            "client_aborts",
            "stream_failures",
            "shed",
            "degraded",
            "route_requests",
            "adapter_loads",
            "labels",
            "newcomers",
            "mirror_requests",
            "mirror_ends",
            "trace_spans",
        ):
            yield from parts(name, getattr(metrics, name).items())
        for name, routes in (
            ("mirror_first_token_ratio", metrics.mirror_first_token),
            ("mirror_tokens_ratio", metrics.mirror_tokens),
        ):
            yield from histograms(name, [((route,), each) for route, each in routes.items()])
        for name, histogram in (
            ("overhead_seconds", metrics.overhead_s),
            ("classifier_seconds", metrics.classifier_s),
            ("event_loop_lag_seconds", metrics.loop_lag_s),
            ("token_estimate_error_ratio", metrics.estimate_ratio),
            ("predicted_wait_error_ratio", metrics.predicted_ratio),
        ):
            yield from histograms(name, (((), histogram),))

    def _canaries(self) -> Iterator[Metric]:
        told = list(self._metrics.canaries())
        yield from parts("canary_percent", [((route,), percent) for route, _, percent in told])
        stages = [((route, stage), 1) for route, stage, _ in told]
        yield from parts("canary_stage", stages)

    def _queue(self) -> Iterator[Metric]:
        metrics = self._metrics
        waits = [((name,), histogram) for name, histogram in metrics.queue_wait_s.items()]
        yield from histograms("queue_wait_seconds", waits)
        queued = list(metrics.queued())
        yield from parts("queued_requests", (((name,), requests) for name, requests, _ in queued))
        yield from parts("queued_tokens", (((name,), tokens) for name, _, tokens in queued))
        kinds = [
            ((pool, kind.value), float(kind.value == told))
            for pool, told in metrics.bottlenecks()
            for kind in Kind
        ]
        yield from parts("bottleneck", kinds)
        held = list(metrics.held())
        yield from parts("held_requests", (((pool,), requests) for pool, requests, _ in held))
        yield from parts("held_tokens", (((pool,), tokens) for pool, _, tokens in held))
        yield from parts("admitted", metrics.admitted.items())
        pressures = [((pool, name), pressed) for pool, name, pressed in metrics.pressures()]
        yield from parts("pressure", pressures)

    def _process(self) -> Iterator[Metric]:
        metrics = self._metrics
        overload = [((reason,), float(metrics.overload == reason)) for reason in ("lag", "memory")]
        yield from parts("overload", overload)
        for name in (
            "clients",
            "tasks",
            "config_reload_success",
            "config_reload_success_timestamp_seconds",
            "tls_handshakes_failed",
            "access_lines_dropped",
            "traces_capped",
        ):
            yield from single(name, float(getattr(metrics, name)))
        yield from single("log_lines_dropped", float(lines_dropped()))
        yield from parts("certificate_expiry_timestamp_seconds", list(metrics.certificates()))
        found = list(metrics.discovered())
        counts = [((pool, kind), count) for pool, kind, count, _ in found]
        yield from parts("discovered_backends", counts)
        ages = [((pool, kind), age_s) for pool, kind, _, age_s in found if age_s is not None]
        yield from parts("discovery_age_seconds", ages)
