"""The plain counters as prometheus-client's families: every metric's name, labels and help."""

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

import proxy
from balancing.backend import AdminState, Backend, State
from proxy.metrics import Metrics


class PenstockCollector(Collector):
    """Turns the plain counters into prometheus-client's families."""

    def __init__(self, metrics: Metrics, backends: Callable[[], Iterable[Backend]]) -> None:
        """`backends()` are those to tell of at that moment, each name once."""
        self._metrics = metrics
        self._known = backends

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily(
            "penstock_build", "The running version.", {"version": proxy.__version__}
        )
        yield from self._pools()
        yield from self._backends()
        yield from self._process()

    def _pools(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "penstock_requests", "Finished requests.", labels=["pool", "backend", "code"]
        )
        tokens = {
            name: CounterMetricFamily(f"penstock_{name}", text, labels=["pool"])
            for name, text in (
                ("prompt_tokens", "Prompt tokens that backends reported."),
                ("completion_tokens", "Generated tokens that backends reported."),
                ("cached_tokens", "Prompt tokens that backends had cached."),
            )
        }
        duration = _histogram("request_duration_seconds", "From head to end of answer.", "pool")
        ttft = _histogram("time_to_first_token_seconds", "From head to first token.", "pool")
        itl = _histogram("inter_token_latency_seconds", "Between events of a stream.", "pool")
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
                family.add_metric([name], histogram.buckets(), histogram.total)
            for field, counter in tokens.items():
                counter.add_metric([name], getattr(pool, field))
        yield from (requests, *tokens.values(), duration, ttft, itl)

    def _backends(self) -> Iterator[Metric]:
        gauges = {
            field: GaugeMetricFamily(f"penstock_backend_{name}", text, labels=["backend"])
            for field, name, text in (
                ("queued_prefill_tokens", "queued_prefill_tokens", "Sent, no first token yet."),
                ("active_decode_tokens", "active_decode_tokens", "Held by open streams."),
                ("requests_in_flight", "requests_in_flight", "Requests sent and not ended."),
                ("can_serve", "can_serve", "1 when requests may be sent there."),
            )
        }
        state = GaugeMetricFamily(
            "penstock_backend_state", "1 for the state it is in.", labels=["backend", "state"]
        )
        admin_state = GaugeMetricFamily(
            "penstock_backend_admin_state",
            "1 for what the operator wants.",
            labels=["backend", "admin_state"],
        )
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

    def _process(self) -> Iterator[Metric]:
        metrics = self._metrics
        for name, text, labels, counter in (
            ("attempts", "Attempts by outcome.", ["reason"], metrics.attempts),
            (
                "affinity",
                "Requests by whether the own backend of their session or response served them.",
                ["result"],
                metrics.affinity,
            ),
            ("client_aborts", "Clients that left, by phase.", ["phase"], metrics.client_aborts),
            (
                "stream_failures",
                "Streams that broke after their first token.",
                ["reason"],
                metrics.stream_failures,
            ),
            (
                "shed",
                "Requests refused since a limit of the proxy's own was reached.",
                ["reason", "priority"],
                metrics.shed,
            ),
        ):
            family = CounterMetricFamily(f"penstock_{name}", text, labels=labels)
            for values, count in counter.items():
                family.add_metric(list(values), count)
            yield family
        for name, text, histogram in (
            ("overhead_seconds", "In penstock until on its way upstream.", metrics.overhead_s),
            ("event_loop_lag_seconds", "Lateness of a periodic timer.", metrics.loop_lag_s),
            (
                "token_estimate_error_ratio",
                "Estimated over reported prompt tokens.",
                metrics.estimate_ratio,
            ),
        ):
            yield HistogramMetricFamily(
                f"penstock_{name}", text, histogram.buckets(), histogram.total
            )
        yield GaugeMetricFamily("penstock_clients", "Open client connections.", metrics.clients)
        yield GaugeMetricFamily("penstock_tasks", "Tasks on the event loop.", metrics.tasks)
        overload = GaugeMetricFamily(
            "penstock_overload", "1 while new requests are refused for it.", labels=["reason"]
        )
        for reason in ("lag", "memory"):
            overload.add_metric([reason], float(metrics.overload == reason))
        yield overload
        # Nothing waits yet: the family is there, so that dashboards need no second version.
        yield _histogram("queue_wait_seconds", "Waiting for admission.", "priority")
        yield GaugeMetricFamily(
            "penstock_config_reload_success",
            "1 when the configuration that was given last is the one in use.",
            float(metrics.reload_success),
        )
        yield CounterMetricFamily(
            "penstock_tls_handshakes_failed",
            "Connections to the data port that ended before TLS was agreed on.",
            metrics.tls_handshakes_failed,
        )
        yield CounterMetricFamily(
            "penstock_access_lines_dropped",
            "Access lines dropped since the log's reader was too slow.",
            metrics.access_lines_dropped,
        )


def _histogram(name: str, text: str, label: str) -> HistogramMetricFamily:
    return HistogramMetricFamily(f"penstock_{name}", text, labels=[label])


def _engines(backends: Iterable[Backend], now_s: float) -> Iterator[Metric]:
    """What engines report of themselves; no series for those that do not, or no more."""
    gauges = {
        "running": GaugeMetricFamily(
            "penstock_backend_engine_running", "Requests in the batch.", labels=["backend"]
        ),
        "waiting": GaugeMetricFamily(
            "penstock_backend_engine_waiting", "Requests queued there.", labels=["backend"]
        ),
        "kv_usage": GaugeMetricFamily(
            "penstock_backend_kv_usage_ratio", "KV cache in use, 0 to 1.", labels=["backend"]
        ),
        "kv_tokens": GaugeMetricFamily(
            "penstock_backend_kv_capacity_tokens", "KV cache in tokens.", labels=["backend"]
        ),
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
