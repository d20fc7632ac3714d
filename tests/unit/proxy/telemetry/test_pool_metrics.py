"""The times of requests by backend and model: bounded, whoever names the models."""

import sys

import pytest

from penstock.balancing.backend import Backend
from penstock.proxy.telemetry.families import PenstockCollector
from penstock.proxy.telemetry.metrics import Metrics
from penstock.proxy.telemetry.pool_metrics import (
    BOUNDS_S,
    MODELS_MAX,
    OTHER,
    POOL_MODELS_MAX,
    PROMPT_CLASSES,
    SLOT_S,
    SLOTS,
    Lately,
    PoolMetrics,
)


def test_a_name_that_the_backend_does_not_list_is_other() -> None:
    metrics, backend = Metrics(["chat"]), Backend("gpu-0", "", "chat")
    for listed in (None, {"m": b"{}"}):
        backend.models = listed
        for number in range(1_000):
            metrics.times(backend, f"invented-{number}").ttft_s.observe(0.1)
        metrics.times(backend, None).ttft_s.observe(0.1)
    metrics.times(backend, "m").ttft_s.observe(0.1)
    times = metrics.pools["chat"].backends["gpu-0"].times
    assert {name: sum(each.ttft_s.counts) for name, each in times.items()} == {OTHER: 2_002, "m": 1}


def test_a_backend_that_lists_many_models_has_series_of_a_few() -> None:
    pool = PoolMetrics()
    for number in range(1_000):
        pool.times("gpu-0", f"m{number}").itl_s.observe(0.1)
    assert len(pool.backends["gpu-0"].times) == MODELS_MAX + 1
    assert sum(pool.itl_s.counts) == 1_000


def test_backends_with_many_models_leave_each_other_one_a_first_model() -> None:
    pool = PoolMetrics()
    backends = POOL_MODELS_MAX // (MODELS_MAX - 1) + 2
    for number in range(backends):
        for model in range(MODELS_MAX):
            pool.times(f"gpu-{number}", f"m{model}")
    pool.times("late", "m0")
    pool.times("late", "m1")
    assert set(pool.backends["late"].times) == {"m0", OTHER}
    named = [name for each in pool.backends.values() for name in each.times if name != OTHER]
    assert len(named) == POOL_MODELS_MAX + backends + 1
    pool.forget("gpu-0")
    assert pool.times("late", "m1") is not pool.times("late", None)


def test_a_backend_of_a_thousand_statuses_has_series_of_the_known_ones() -> None:
    metrics = Metrics(["chat"])
    for status in (*range(100, 1_000), 503):
        metrics.pools["chat"].request("gpu-0", status, 0.1)
    rows = [
        (sample.labels["code"], sample.value)
        for part in PenstockCollector(metrics, tuple).collect()
        for sample in part.samples
        if sample.name == "penstock_requests_total"
    ]
    told = dict(rows)
    assert len(rows) == len(told) < 90
    assert sum(told.values()) == 901
    assert (told["503"], told["499"], told["529"], told["200"]) == (2, 1, 1, 1)
    assert told["9xx"] == 100
    assert "467" not in told


def test_what_a_backend_counted_stays_in_its_pool() -> None:
    """A counter of the pool must not fall when a backend leaves."""
    pool = PoolMetrics()
    for name in ("a", "b"):
        pool.times(name, "m").itl_s.observe(0.02, count=5)
        pool.backend(name).attempts["ok"] = 1
        pool.request(name, 200, 1.0)
    before = pool.itl_s
    pool.forget("a")
    pool.forget("unknown")
    assert (pool.itl_s.counts, pool.itl_s.total) == (before.counts, before.total)
    assert list(pool.backends) == ["b"]
    assert list(pool.requests) == [("b", 200)]


@pytest.mark.parametrize(
    ("tokens", "told"),
    [(0, "1k"), (1_024, "1k"), (1_025, "8k"), (8_192, "8k"), (32_768, "32k"), (32_769, "more")],
)
def test_first_tokens_are_told_by_the_length_of_the_prompt(tokens: int, told: str) -> None:
    pool = PoolMetrics()
    pool.first_token(tokens, 0.5)
    counts = [sum(each.counts) for each in pool.ttft_by_prompt_s]
    assert dict(zip(PROMPT_CLASSES, counts, strict=True)) == {
        name: int(name == told) for name in PROMPT_CLASSES
    }
    assert sum(pool.ttft_s.counts) == 1


NOW_S = 100_000.0


def test_a_percentile_is_that_of_the_last_minutes_and_at_most_a_fourth_too_high() -> None:
    lately = Lately()
    lately.first_token(9.0, NOW_S)
    for number in range(100):
        lately.first_token(0.001 * (1 + number), NOW_S + 3 * SLOT_S)
    assert lately.first_tokens == 100
    told_s = lately.ttft_s(0.95)
    assert told_s is not None
    assert 0.095 <= told_s <= 0.095 * 1.25


def test_what_is_older_than_the_last_minutes_is_forgotten() -> None:
    lately = Lately()
    lately.first_token(0.1, NOW_S)
    lately.failed("reset", NOW_S)
    begin_s = NOW_S // SLOT_S * SLOT_S
    lately.advance(begin_s + SLOTS * SLOT_S - 0.1)
    assert (lately.first_tokens, lately.failures) == (1, 1)
    lately.advance(begin_s + SLOTS * SLOT_S)
    assert (lately.first_tokens, lately.failures, lately.ttft_s(0.95)) == (0, 0, None)
    assert (lately.failure, lately.failed_s) == ("reset", NOW_S)  # the last one is told for ever


def test_a_clock_that_stands_still_or_a_late_event_changes_nothing_else() -> None:
    lately = Lately()
    lately.first_token(0.1, NOW_S)
    lately.first_token(0.1, NOW_S - 10 * SLOT_S)
    lately.advance(0.0)
    lately.first_token(0.1, NOW_S)
    assert lately.first_tokens == 3


def test_the_longest_time_is_told_as_the_last_bound() -> None:
    lately = Lately()
    lately.first_token(1e9, NOW_S)
    assert lately.ttft_s(0.95) == BOUNDS_S[-1]


@pytest.mark.once
def test_it_takes_as_much_memory_as_it_says_whatever_is_counted() -> None:
    lately = Lately()
    for number in range(10_000):
        lately.first_token(1.07 ** (number % 120) / 1_000, NOW_S + number)
        lately.failed("reset", NOW_S + number)
    parts = (lately, lately._ttfts, lately._failures, *lately._ttfts)
    assert 800 < sum(map(sys.getsizeof, parts)) <= 1_450
