"""Metrics: cut into pieces or whole, the text is the same, and labels are bounded."""

import asyncio
from time import monotonic

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from penstock.balancing.backend import Backend, State
from penstock.balancing.engine_report import STALE_S, EngineReport
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.policies import POLICIES
from penstock.proxy.telemetry.exposition import Exposition, pieces
from penstock.proxy.telemetry.families import PenstockCollector
from penstock.proxy.telemetry.metrics import LABEL_VALUES_MAX, Counter, Histogram, Metrics

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


def test_the_pieces_are_the_whole() -> None:
    texts = list(pieces(collector().collect()))
    assert b"".join(texts) == generate_latest(collector())
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
        assert 'penstock_backend_can_serve{backend="gpu-0"} 0.0' in text


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
