"""Metrics: cut into pieces or whole, the text is the same, and labels are bounded."""

import asyncio
import gc
from collections.abc import Iterator
from itertools import groupby
from time import monotonic, thread_time

import pytest
from prometheus_client import Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from penstock.balancing.backend import Backend, State
from penstock.balancing.engine_report import STALE_S, EngineReport, GpuReport
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.policies import POLICIES
from penstock.proxy.telemetry.exposition import KEPT_S, SHARE_MAX, Exposition, pieces
from penstock.proxy.telemetry.families import PenstockCollector
from penstock.proxy.telemetry.metrics import LABEL_VALUES_MAX, Counter, Metrics
from penstock.proxy.telemetry.pool_metrics import Histogram

FLEET = Fleet(
    (
        Pool(
            "chat",
            tuple(Backend(f"gpu-{i}", "http://127.0.0.1:1", "chat") for i in range(64)),
            POLICIES["least_tokens"](()),
        ),
    )
)


def collector() -> PenstockCollector:
    metrics = Metrics(["chat"])
    for number in range(300):
        metrics.pools["chat"].request(f"gpu-{number % 64}", 200 + number % 3, 0.1 * number)
    metrics.attempts.add("refused")
    return PenstockCollector(metrics, lambda: FLEET.backends)


class Joined(Collector):
    """The families of another collector, each in one part."""

    def __init__(self, parts: Collector) -> None:
        self._parts = parts

    def collect(self) -> Iterator[Metric]:
        for _, same in groupby(self._parts.collect(), lambda part: part.name):
            whole, *rest = same
            for part in rest:
                whole.samples += part.samples
            yield whole


def test_the_pieces_are_the_whole() -> None:
    texts = list(pieces(collector().collect()))
    assert b"".join(texts) == generate_latest(Joined(collector()))
    assert max(text.count(b"\n") for text in texts) <= 52  # some 0.3 ms of rendering


def test_the_text_parses_and_counts() -> None:
    text = b"".join(pieces(collector().collect())).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    requests = families["penstock_requests"]
    assert sum(sample.value for sample in requests.samples) == 300
    states = families["penstock_backend_state"].samples
    assert len(states) == 64 * len(State)
    assert sum(sample.value for sample in states) == 64
    duration = families["penstock_request_duration_seconds"].samples
    assert [s.value for s in duration if s.name.endswith("_count")] == [300.0]


def test_an_engine_that_reports_no_more_has_no_series() -> None:
    backend = Backend("gpu-0", "http://x")
    backend.state = State.EJECTED
    fleet = Fleet((Pool("chat", (backend,), POLICIES["least_tokens"](())),))
    for age_s, told in ((0.0, True), (STALE_S, False)):
        backend.report = EngineReport(at_s=monotonic() - age_s, running=4)
        collected = PenstockCollector(Metrics(["chat"]), lambda: fleet.backends).collect()
        text = b"".join(pieces(collected)).decode()
        assert ('penstock_backend_engine_running{backend="gpu-0"} 4.0' in text) == told
        assert 'penstock_backend_can_serve{backend="gpu-0",pool="default"} 0.0' in text


def test_histograms_are_cumulative_and_exact_at_bounds() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 3.0):
        histogram.observe(value)
    histogram.observe(9.0, count=2)
    assert histogram.buckets() == [("1.0", 2.0), ("2.0", 4.0), ("+Inf", 7.0)]
    assert histogram.total == 26.0


def test_labels_that_others_choose_are_bounded() -> None:
    counter = Counter()
    for number in range(5_000):
        counter.add(f"reason-{number}")
    rows = dict(counter.items())
    assert len(rows) == LABEL_VALUES_MAX + 1
    assert rows["other",] == 5_000 - LABEL_VALUES_MAX


async def test_the_loop_turns_between_slices() -> None:
    """With slices of no length every piece is one: others run as often as there are pieces."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    body = await Exposition(collector(), slice_s=0.0).body()
    task.cancel()
    texts = list(pieces(collector().collect()))
    assert body == b"".join(texts)
    assert turns >= len(texts) > 10


class Clock:
    """Each look at it takes `look_s`."""

    def __init__(self, look_s: float) -> None:
        self.now_s = 0.0
        self.look_s = look_s

    def __call__(self) -> float:
        self.now_s += self.look_s
        return self.now_s


async def test_a_text_that_takes_long_is_kept_longer() -> None:
    """Whoever may ask, also without a token, takes no more than a share of the CPU."""
    for look_s in (1e-7, 1e-3):
        clock = Clock(look_s)
        metrics = Metrics(["chat"])
        exposition = Exposition(PenstockCollector(metrics, lambda: ()), now=clock, cpu=clock)
        body = await exposition.body()
        rendered_s = clock.now_s
        metrics.attempts.add("refused")
        kept_s = max(KEPT_S, rendered_s / SHARE_MAX)
        clock.now_s = rendered_s + 0.45 * kept_s
        assert await exposition.body() == body
        clock.now_s = rendered_s + 1.1 * kept_s
        assert await exposition.body() != body


def large_fleet(count: int) -> tuple[Metrics, list[Backend]]:
    """Everything that can be told of so many backends."""
    metrics, backends, now_s = Metrics(["chat"]), [], monotonic()
    pool = metrics.pools["chat"]
    for number in range(count):
        backend = Backend(f"gpu-{number}", "http://127.0.0.1:1", "chat")
        backend.models = {"m": b"{}"}
        backend.report = EngineReport(at_s=now_s + 100, kv_tokens=450_000)
        backend.gpus = GpuReport(now_s + 100, 0.5, 1, 1)
        backend.refresh(now_s)
        for _ in range(10):  # of one client only: that is the slowest comparison
            client = f"client-{number}"
            backend.prefill_speed.recent.observe(1.0, client)
            backend.prefill_speed.observe(1_000, 0.1)
            backend.decode_speed.observe(100, 2.0, 0.0, 1_000, client)
        times = metrics.times(backend, "m")
        for histogram in (times.duration_s, times.ttft_s, times.itl_s):
            histogram.observe(0.1)
        pool.request(backend.name, 200, 0.1)
        metrics.attempted(times, "ok")
        pool.backend(backend.name).routed["cost"] = 1
        backends.append(backend)
    return metrics, backends


@pytest.mark.alone
@pytest.mark.once
async def test_no_turn_of_the_loop_is_long_while_a_thousand_backends_are_told() -> None:
    metrics, backends = large_fleet(1_000)
    turns: list[float] = []

    async def others() -> None:
        last_s = thread_time()
        while True:
            await asyncio.sleep(0)
            turns.append(thread_time() - last_s)
            last_s = thread_time()

    task = asyncio.create_task(others())
    gc.collect()
    gc.disable()  # the process collects objects rarely (`app.py`)
    try:
        body = await Exposition(PenstockCollector(metrics, lambda: backends)).body()
    finally:
        gc.enable()
        task.cancel()
    assert body.count(b"\n") > 60_000
    assert max(turns) < 0.01
