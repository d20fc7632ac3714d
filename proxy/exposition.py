"""The text of /metrics, rendered on the loop in slices.

One `generate_latest` over 64 backends holds the loop for tens of milliseconds,
and a thread does not help: it holds the interpreter lock instead (50 ms gaps
were measured). So families are cut into pieces of few samples, each rendered
by itself, with a turn of the loop between them. A body is kept for a moment,
so that several scrapers cost one rendering.
"""

import asyncio
from collections.abc import Iterable, Iterator
from time import monotonic, perf_counter
from typing import Final

from prometheus_client import Metric, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.registry import Collector

import proxy
from balancing.backend import State
from balancing.fleet import Fleet
from proxy.metrics import Metrics

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
KEPT_S: Final = 1.0
# A sample costs about 5 us to render: a piece stays well under a slice.
PIECE_SAMPLES: Final = 50
SLICE_S: Final = 0.0005


class PenstockCollector(Collector):
    """Turns the plain counters into prometheus-client's families."""

    def __init__(self, metrics: Metrics, fleet: Fleet) -> None:
        self._metrics = metrics
        self._fleet = fleet

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
            )
        }
        state = GaugeMetricFamily(
            "penstock_backend_state", "1 for the state it is in.", labels=["backend", "state"]
        )
        for backend in self._fleet.backends:
            for field, gauge in gauges.items():
                gauge.add_metric([backend.name], getattr(backend, field))
            for each in State:
                state.add_metric([backend.name, each.value], float(backend.state is each))
        yield from (*gauges.values(), state)

    def _process(self) -> Iterator[Metric]:
        metrics = self._metrics
        for name, text, labels, counter in (
            ("attempts", "Attempts by outcome.", ["reason"], metrics.attempts),
            ("client_aborts", "Clients that left, by phase.", ["phase"], metrics.client_aborts),
            (
                "stream_failures",
                "Streams that broke after their first token.",
                ["reason"],
                metrics.stream_failures,
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
        yield CounterMetricFamily(
            "penstock_access_lines_dropped",
            "Access lines dropped since the log's reader was too slow.",
            metrics.access_lines_dropped,
        )


def _histogram(name: str, text: str, label: str) -> HistogramMetricFamily:
    return HistogramMetricFamily(f"penstock_{name}", text, labels=[label])


class _Piece(Collector):
    """A registry of one family, as `generate_latest` wants it."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


def pieces(families: Iterable[Metric]) -> Iterator[bytes]:
    """The exposition in pieces of at most PIECE_SAMPLES; joined they are the whole."""
    for family in families:
        samples = family.samples
        for start in range(0, max(1, len(samples)), PIECE_SAMPLES):
            piece = Metric(family.name, family.documentation, family.type, family.unit)
            piece.samples = samples[start : start + PIECE_SAMPLES]
            text: bytes = generate_latest(_Piece(piece))
            if start:  # HELP and TYPE stand before the first piece only
                text = b"".join(
                    line for line in text.splitlines(keepends=True) if not line.startswith(b"#")
                )
            yield text


class Exposition:
    """Renders /metrics for all scrapers, one rendering at a time."""

    def __init__(self, collector: Collector, slice_s: float = SLICE_S) -> None:
        self._collector = collector
        self._slice_s = slice_s
        self._body = b""
        self._kept_until_s = 0.0
        self._rendering = asyncio.Lock()

    async def body(self) -> bytes:
        async with self._rendering:
            if monotonic() >= self._kept_until_s:
                self._body = await self._render()
                self._kept_until_s = monotonic() + KEPT_S
            return self._body

    async def _render(self) -> bytes:
        parts = []
        began_s = perf_counter()
        for part in pieces(self._collector.collect()):
            parts.append(part)
            if perf_counter() - began_s > self._slice_s:
                await asyncio.sleep(0)
                began_s = perf_counter()
        return b"".join(parts)
