"""`make stores`: how much memory what penstock remembers of its fleet takes at most.

Each store is filled until it takes no more, with the largest entries that it may hold, and with
numbers that are objects of their own, as they are in a process. tracemalloc tells what is held.
The recent requests have the longest ids and eight attempts, the entries of `slo` all objectives. A
fleet has 1,000 backends in one pool, with as many models as are told apart. Exit 0 when each store
is within the bound that docs/operations.md tells.
"""

import gc
import sys
import tracemalloc
from asyncio import run as run_loop
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

from penstock.balancing.backend import Backend
from penstock.balancing.engine_report import EngineReport
from penstock.balancing.slo.sample import Outcome, Sample
from penstock.balancing.slo.slo import Slo
from penstock.balancing.speed.compare import Pace
from penstock.balancing.verdict.facts import BackendFacts, PoolFacts
from penstock.balancing.verdict.verdict import Verdict
from penstock.balancing.verdict.window import WINDOW_S
from penstock.bench.report import head, row, verdict
from penstock.conf.slo import SLOS_MAX, SloSettings
from penstock.proxy.dialects.dialect import Usage
from penstock.proxy.telemetry.exposition import Exposition
from penstock.proxy.telemetry.families import PenstockCollector
from penstock.proxy.telemetry.metrics import Metrics
from penstock.proxy.telemetry.pool_metrics import POOL_MODELS_MAX, Histogram
from penstock.proxy.telemetry.recent import SAMPLED_EVERY, SLOW_WINDOW_S, TRIES_MAX, Kept, Recent
from penstock.proxy.telemetry.record import Record
from penstock.proxy.tracing.span import SPANS_MAX, Finished, Waiting
from penstock.proxy.tracing.trace import STATE_BYTES_MAX

MB: Final = 1e6
BACKENDS: Final = 1_000
ID_CHARS: Final = 128
# What a healthy and a sick backend answer, and how attempts there end.
STATUSES: Final = (200, 400, 404, 429, 500, 502, 503, 504)
REASONS: Final = ("ok", "connect", "reset", "cut", "timeout", "busy", "internal", "empty")
ROUTED: Final = ("cost", "only", "affinity", "spill")
# Enough for all tables: one in SAMPLED_EVERY is in the sample.
REQUESTS: Final = 18_000


def recent_requests() -> Recent:
    """Long ones, failures and plain ones over two windows, each tried eight times."""
    recent = Recent()
    for number in range(REQUESTS):
        at_s = SLOW_WINDOW_S * (1.0 + 1.9 * number / REQUESTS)
        record = Record(at_s, at_s + 0.1, at_s + 0.2)
        record.read_s = at_s + 0.3
        for _ in range(TRIES_MAX):
            record.begin_try("a-backend", "a-pool", "cost", at_s + 0.4)
            last = record.tries[-1]
            last.sent_s, last.first_byte_s = at_s + 0.5, at_s + 0.6
            last.failed("reset", at_s + 0.7)
        # By turns slow to begin and long; no failure is in the sample, and none is slow.
        last.first_token_s = at_s + (9.0 if number % 97 == 1 else 1.0)
        record.ended_s = at_s + (30.0 if number % 101 == 2 else 10.0)
        record.status = 500 if number % SAMPLED_EVERY == 3 else 200
        record.whole, record.usage = record.status == 200, Usage(100_000, 20_000, 5_000)
        request_id = f"{number:0{ID_CHARS}}".encode()
        recent.add(Kept(record, request_id, "owner", "tenant", "model", stream=True))
    return recent


def slos() -> list[Slo]:
    """As many entries as are allowed, each with every objective."""
    percentiles = {"p50": 0.11, "p90": 0.37, "p95": 0.73, "p99": 1.9}
    timed = dict.fromkeys(("ttft_s", "itl_s", "e2e_s"), percentiles)
    shares = {"availability": 0.999, "error_rate": 0.001, "goodput": 0.95}
    settings = SloSettings.model_validate({**timed, **shares})
    entries = [Slo(settings, 0.0) for _ in range(SLOS_MAX)]
    for slo in entries:
        for number in range(20):
            ended = Sample(
                Outcome.SERVED, 5.0, streams=True, ttft_s=0.3, itl_s=number / 20, e2e_s=4.0
            )
            slo.add(ended, number * 300.0)
    return entries


def verdict_window() -> tuple[Verdict, list[Any]]:
    """The last seconds of a busy pool, and what one look makes of them."""
    told = Verdict(0.0)
    for second in range(int(WINDOW_S) + 5):
        backends = tuple(_facts(second, number) for number in range(BACKENDS))
        told.window.add(PoolFacts(at_s=float(second), backends=backends))
        seen = list(told.window.backends())
        told.look(seen)
    return told, seen


def _facts(second: int, number: int) -> BackendFacts:
    real, whole = second + number / 7.0, 1_000 * second + number + 1_000
    return BackendFacts(
        name=f"backend-{number}",
        streams=whole,
        sequences=whole + 1,
        overdue_s=real * 0.1,
        backlog_s=real * 0.2,
        held_share=real * 0.3,
        step_s=real * 0.4,
        pace=Pace(real * 0.5, real * 0.6),
        requests_total=whole + 2,
        failures_total=whole + 3,
        report=_report(second // 6, number),
    )


@cache
def _report(turn: int, number: int) -> EngineReport:
    """One for several looks: so many backends are scraped every 20 s."""
    real, whole = turn + number / 7.0, 1_000 * turn + number + 1_000
    return EngineReport(
        real,
        running=whole + 4,
        waiting=whole + 5,
        kv_usage=real * 0.6,
        generated_tokens=whole + 6,
        preemptions=whole + 7,
        steps=whole + 8,
    )


def fleet_metrics() -> Metrics:
    """The counts of the fleet. Each backend has its first model and unknown ones; the pool has as
    many others as are told apart."""
    metrics = Metrics(["pool"])
    pool = metrics.of("pool")
    models = POOL_MODELS_MAX // BACKENDS + 2  # the first one does not count
    for number in range(BACKENDS):
        name = f"backend-{number}"
        for status in STATUSES:
            pool.requests[name, status] = 100_000 + number
        counts = pool.backend(name)
        for reason in REASONS:
            counts.attempts[reason] = 200_000 + number
        for reason in ROUTED:
            counts.routed[reason] = 300_000 + number
        for model in (*range(models), None):
            known = f"model-{model}-of-{number}" if model is not None else None
            times = pool.times(name, known)
            for histogram in (times.duration_s, times.ttft_s, times.itl_s):
                _fill(histogram, number)
    return metrics


def _fill(histogram: Histogram, number: int) -> None:
    for each in (*histogram.bounds, 1e6):
        histogram.observe(each, 1_000 + number)


def metrics_text() -> tuple[Metrics, list[Exposition]]:
    """The text of /metrics with and without what only an operator is told, kept for scrapers."""
    metrics = fleet_metrics()
    backends = [Backend(f"backend-{number}", "http://a:1", "pool") for number in range(BACKENDS)]
    collectors = [
        PenstockCollector(metrics, lambda: backends, secrets=told) for told in (False, True)
    ]
    expositions = [Exposition(each) for each in collectors]
    for each in expositions:
        run_loop(each.body())
    return metrics, expositions


class Store(NamedTuple):
    """One store, how to fill it, and what it may take."""

    name: str
    fill: Callable[[], object]
    bound_mb: float


def waiting_spans() -> Waiting:
    """Requests that reached no backend, which take the most for a span, of as many clients."""
    waiting = Waiting()
    for number in range(SPANS_MAX):
        at_s = 100.0 + number
        record = Record(at_s, at_s + 0.1, at_s + 0.2)
        record.read_s, record.ended_s = at_s + 0.3, at_s + 0.4
        record.waited_s, record.predicted_s, record.stalled_s = at_s / 7, at_s / 11, at_s / 13
        record.trace_id = f"{number:032x}"
        request_id = f"{number:0{ID_CHARS}}".encode()
        name = f"client-{number}"
        kept = Kept(record, request_id, name, name, "m" * ID_CHARS, stream=True)
        trace_id, span_id, parent_id = [f"{number:0{n}x}".encode() for n in (32, 16, 16)]
        state = f"k={number:0{STATE_BYTES_MAX - 2}}".encode()
        ended_ns = 1_800_000_000_000_000_000 + number
        waiting.put(
            Finished(kept, trace_id, span_id, parent_id, state, "POST", "/v1", "http", ended_ns)
        )
    return waiting


STORES: Final = (
    Store("recent requests", recent_requests, 4.0),
    Store("spans that wait to be sent", waiting_spans, 10.0),
    Store(f"service levels, {SLOS_MAX} entries", slos, 8.0),
    Store(f"verdict on a pool of {BACKENDS:,} backends", verdict_window, 11.0),
    Store(f"counts and histograms of {BACKENDS:,} backends", fleet_metrics, 12.0),
    Store("these, and the text of /metrics, twice", metrics_text, 60.0),
)


def held_bytes(fill: Callable[[], object]) -> tuple[int, int]:
    """What a full store holds, and the most that was held while it was filled."""
    gc.collect()
    tracemalloc.start()
    try:
        store = fill()
        gc.collect()
        held, peak = tracemalloc.get_traced_memory()
        del store
        return held, peak
    finally:
        tracemalloc.stop()


def main() -> int:
    """Print the table; returns the exit status."""
    print(head("store", "held, MB", "peak, MB", "bound, MB"))
    failures = []
    for each in STORES:
        held, peak = held_bytes(each.fill)
        print(row(each.name, f"{held / MB:.2f}", f"{peak / MB:.2f}", f"{each.bound_mb:g}"))
        if held > each.bound_mb * MB:
            failures.append(f"{each.name}: more than {each.bound_mb:g} MB")
    return verdict(failures)


if __name__ == "__main__":
    sys.exit(main())
