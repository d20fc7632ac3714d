"""Turns the plain counters into prometheus-client's families. `family_table` describes them."""

from collections.abc import Callable, Iterable, Iterator
from time import monotonic

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.registry import Collector

from penstock import proxy
from penstock.balancing.backend import AdminState, Backend, State
from penstock.balancing.verdict.cause import Kind
from penstock.proxy.telemetry.family_table import FAMILIES
from penstock.proxy.telemetry.metrics import Histogram, Metrics
from penstock.proxy.telemetry.slo_families import slo_families


class PenstockCollector(Collector):
    """Turns the plain counters into prometheus-client's families."""

    def __init__(
        self, metrics: Metrics, backends: Callable[[], Iterable[Backend]], *, tenants: bool = True
    ) -> None:
        """`backends()` returns the backends to report at that moment, each name once. `tenants`:
        whether series that name tenants are told."""
        self._metrics = metrics
        self._tenants = tenants
        self._known = backends

    def collect(self) -> Iterator[Metric]:
        build = InfoMetricFamily("penstock_build", FAMILIES["build"].text)
        build.add_metric((), {"version": proxy.__version__, "build": proxy.build()})
        yield build
        yield from self._pools()
        yield from self._backends()
        yield from self._process()
        yield from slo_families(self._metrics.slos())
        if self._tenants:
            yield from self._usage()

    def _usage(self) -> Iterator[Metric]:
        requests, tokens = _counter("tenant_requests"), _counter("tenant_tokens")
        for tenant, model, used in self._metrics.usage.items():
            requests.add_metric([tenant, model], used.requests)
            for kind, count in (
                ("prompt", used.prompt_tokens),
                ("cached", used.cached_tokens),
                ("completion", used.completion_tokens),
            ):
                tokens.add_metric([tenant, model, kind], count)
        refused = _counter("rate_limited")
        for (tenant,), count in self._metrics.rate_limited.items():
            refused.add_metric([tenant], count)
        yield from (requests, tokens, refused)

    def _pools(self) -> Iterator[Metric]:
        requests = _counter("requests")
        tokens = [
            _counter(name) for name in ("prompt_tokens", "completion_tokens", "cached_tokens")
        ]
        duration = _histogram("request_duration_seconds")
        ttft = _histogram("time_to_first_token_seconds")
        itl = _histogram("inter_token_latency_seconds")
        for name, pool in self._metrics.pools.items():
            for (backend, status), count in pool.requests.items():
                requests.add_metric([name, backend, str(status)], count)
            if not name:
                continue
            for family, histogram in (
                (duration, pool.duration_s),
                (ttft, pool.ttft_s),
                (itl, pool.itl_s),
            ):
                _add(family, histogram, name)
            counts = (pool.prompt_tokens, pool.completion_tokens, pool.cached_tokens)
            for counter, count in zip(tokens, counts, strict=True):
                counter.add_metric([name], count)
        yield from (requests, *tokens, duration, ttft, itl)

    def _backends(self) -> Iterator[Metric]:
        gauges = {
            field: _gauge(f"backend_{field}")
            for field in (
                "queued_prefill_tokens",
                "active_decode_tokens",
                "requests_in_flight",
                "can_serve",
            )
        }
        state = _gauge("backend_state")
        admin_state = _gauge("backend_admin_state")
        backends = tuple(self._known())
        for backend in backends:
            for field, gauge in gauges.items():
                gauge.add_metric([backend.name], float(getattr(backend, field)))
            for each in State:
                state.add_metric([backend.name, each.value], float(backend.state is each))
            for wanted in AdminState:
                held = float(backend.admin_state is wanted)
                admin_state.add_metric([backend.name, wanted.value], held)
        yield from (*gauges.values(), state, admin_state)
        yield from _engines(backends, monotonic())

    def _queue(self) -> Iterator[Metric]:
        waits = _histogram("queue_wait_seconds")
        for service_class, histogram in self._metrics.queue_wait_s.items():
            _add(waits, histogram, service_class)
        requests, tokens = _gauge("queued_requests"), _gauge("queued_tokens")
        for service_class, queued, queued_tokens in self._metrics.queued():
            requests.add_metric([service_class], queued)
            tokens.add_metric([service_class], queued_tokens)
        bottleneck = _gauge("bottleneck")
        for pool, told in self._metrics.bottlenecks():
            for kind in Kind:
                bottleneck.add_metric([pool, kind.value], float(kind.value == told))
        yield bottleneck
        held_requests, held_tokens = _gauge("held_requests"), _gauge("held_tokens")
        for pool, held, tokens_held in self._metrics.held():
            held_requests.add_metric([pool], held)
            held_tokens.add_metric([pool], tokens_held)
        admitted = _counter("admitted")
        for labels, count in self._metrics.admitted.items():
            admitted.add_metric(labels, count)
        pressure = _gauge("pressure")
        for pool, service_class, pressed in self._metrics.pressures():
            pressure.add_metric([pool, service_class], pressed)
        yield from (waits, requests, tokens, held_requests, held_tokens, admitted, pressure)

    def _process(self) -> Iterator[Metric]:
        metrics = self._metrics
        for name in (
            "attempts",
            "affinity",
            "client_aborts",
            "stream_failures",
            "shed",
            "degraded",
        ):
            counter = _counter(name)
            for values, count in getattr(metrics, name).items():
                counter.add_metric(values, count)
            yield counter
        for name, histogram in (
            ("overhead_seconds", metrics.overhead_s),
            ("event_loop_lag_seconds", metrics.loop_lag_s),
            ("token_estimate_error_ratio", metrics.estimate_ratio),
            ("predicted_wait_error_ratio", metrics.predicted_ratio),
        ):
            family = _histogram(name)
            _add(family, histogram)
            yield family
        overload = _gauge("overload")
        for reason in ("lag", "memory"):
            overload.add_metric([reason], float(metrics.overload == reason))
        yield overload
        yield from self._queue()
        for name, value in (
            ("clients", metrics.clients),
            ("tasks", metrics.tasks),
            ("config_reload_success", metrics.reload_success),
        ):
            gauge = _gauge(name)
            gauge.add_metric((), float(value))
            yield gauge
        for name, value in (
            ("tls_handshakes_failed", metrics.tls_handshakes_failed),
            ("access_lines_dropped", metrics.access_lines_dropped),
        ):
            counter = _counter(name)
            counter.add_metric((), value)
            yield counter


def _engines(backends: Iterable[Backend], now_s: float) -> Iterator[Metric]:
    """The engines' own metrics. An engine without a recent report has no series."""
    gauges = {
        "running": _gauge("backend_engine_running"),
        "waiting": _gauge("backend_engine_waiting"),
        "kv_usage": _gauge("backend_kv_usage_ratio"),
        "kv_tokens": _gauge("backend_kv_capacity_tokens"),
    }
    for backend in backends:
        report = backend.report
        if report is None or not report.freshness(now_s):
            continue
        for field, gauge in gauges.items():
            value = getattr(report, field)
            if value is not None:
                gauge.add_metric([backend.name], value)
    yield from gauges.values()


def _counter(name: str) -> CounterMetricFamily:
    told = FAMILIES[name]
    return CounterMetricFamily(f"penstock_{name}", told.text, labels=told.labels)


def _gauge(name: str) -> GaugeMetricFamily:
    told = FAMILIES[name]
    return GaugeMetricFamily(f"penstock_{name}", told.text, labels=told.labels)


def _histogram(name: str) -> HistogramMetricFamily:
    told = FAMILIES[name]
    return HistogramMetricFamily(f"penstock_{name}", told.text, labels=told.labels)


def _add(family: HistogramMetricFamily, histogram: Histogram, *labels: str) -> None:
    family.add_metric(labels, histogram.buckets(), histogram.total)
