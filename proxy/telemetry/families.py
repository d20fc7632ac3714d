"""Turns the plain counters into prometheus-client's families. `family_table` describes them."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import Metric
from prometheus_client.core import InfoMetricFamily
from prometheus_client.registry import Collector

from penstock import proxy
from penstock.balancing.backend import Backend
from penstock.balancing.verdict.cause import Kind
from penstock.proxy.telemetry.backend_families import backend_families
from penstock.proxy.telemetry.family_parts import Row, histograms, parts, single
from penstock.proxy.telemetry.family_table import FAMILIES
from penstock.proxy.telemetry.log_lines import lines_dropped
from penstock.proxy.telemetry.metrics import Metrics
from penstock.proxy.telemetry.request_families import request_families
from penstock.proxy.telemetry.slo_families import slo_families


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
        """What became of requests, whatever their pool."""
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
