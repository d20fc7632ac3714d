"""Windows hold exactly what a count of every request finds, in bounded memory."""

from itertools import pairwise
from random import Random

import pytest

from penstock.balancing.slo.windows import (
    CELL_S,
    LATENCY_SLOT_S,
    LATENCY_SLOTS,
    SLOTS,
    Latencies,
    Windows,
    bounds_of,
)

SPANS_S = (300.0, 1_800.0, 3_600.0, 21_600.0, 259_200.0, 2_592_000.0)


@pytest.mark.parametrize("seed", range(8))
def test_windows_equal_a_count_of_every_request(seed: int) -> None:
    """A walk with rushes, pauses and nights, some longer than a whole window."""
    rng = Random(seed)
    now_s = rng.uniform(0.0, 1e6)
    windows = Windows(SPANS_S, now_s)
    seen: list[tuple[float, bool]] = []
    for _ in range(3_000):
        now_s += rng.choice((0.0, 0.01, 1.0, 4.999, 60.0, 3_600.0)) * rng.random()
        if rng.random() < 0.004:
            now_s += rng.uniform(0.0, 4e6)
        good = rng.random() < 0.8
        seen.append((now_s, good))
        windows.add(good=good, now_s=now_s)
        if rng.random() > 0.05:
            continue
        now_s += rng.choice((0.0, 400.0))
        windows.advance(now_s)
        for ring in windows.rings:
            oldest = int(now_s // CELL_S) * CELL_S // ring.slot_s - SLOTS + 1
            inside = [
                good for at_s, good in seen if int(at_s // CELL_S) * CELL_S // ring.slot_s >= oldest
            ]
            assert ring.sums == [inside.count(True), inside.count(False)]
    assert (windows.good, windows.bad) == (
        [good for _, good in seen].count(True),
        [good for _, good in seen].count(False),
    )


def test_a_window_is_at_most_one_slot_shorter_than_its_name() -> None:
    for span_s in (*SPANS_S, 3_601.0, 86_400.0 * 7):
        (ring,) = Windows((span_s,), 0.0).rings
        assert ring.slot_s % CELL_S == 0
        assert span_s <= ring.slot_s * SLOTS < span_s + CELL_S * SLOTS


def test_a_year_of_silence_costs_no_more_than_a_window() -> None:
    windows = Windows(SPANS_S, 0.0)
    windows.add(good=False, now_s=1.0)
    windows.advance(3.2e7)
    assert [ring.sums for ring in windows.rings] == [[0, 0]] * len(SPANS_S)
    assert windows.bad == 1


def test_a_clock_that_does_not_move_on_changes_nothing() -> None:
    windows = Windows(SPANS_S, 100.0)
    windows.add(good=True, now_s=100.0)
    windows.advance(50.0)
    assert [ring.sums[0] for ring in windows.rings] == [1] * len(SPANS_S)


@pytest.mark.parametrize("seed", range(6))
def test_percentiles_are_at_most_a_bucket_above_the_true_ones(seed: int) -> None:
    rng = Random(seed)
    targets_s = (0.2, 0.5)
    latencies = Latencies(bounds_of(targets_s))
    seen: list[tuple[float, float]] = []
    now_s = rng.uniform(0.0, 1e5)
    for _ in range(2_000):
        now_s += rng.expovariate(0.5)
        time_s = rng.lognormvariate(-1.0, 1.2)
        seen.append((now_s, time_s))
        latencies.add(time_s, now_s)
        if rng.random() > 0.03:
            continue
        latencies.advance(now_s)
        oldest = int(now_s // LATENCY_SLOT_S) - LATENCY_SLOTS + 1
        inside = sorted(time_s for at_s, time_s in seen if at_s // LATENCY_SLOT_S >= oldest)
        for share in (0.5, 0.9, 0.95, 0.99):
            true_s = inside[max(0, -int(-share * len(inside) // 1) - 1)]
            told_s = latencies.percentile_s(share)
            assert told_s is not None
            assert true_s <= told_s <= max(0.001, true_s * 1.25 * (1 + 1e-9))
            for target_s in targets_s:
                assert (told_s > target_s) == (true_s > target_s)


def test_buckets_have_the_targets_and_the_limits_of_states_as_bounds() -> None:
    bounds = bounds_of((0.5,))
    assert {0.5, 0.5 * 0.9, 0.5 * 0.8, 0.5 * 0.7} <= set(bounds)
    assert all(upper / lower <= 1.25 * (1 + 1e-9) for lower, upper in pairwise(bounds))


def test_what_is_longer_than_every_bucket_is_endless() -> None:
    latencies = Latencies(bounds_of((0.5,)))
    latencies.add(1e5, 0.0)
    assert latencies.percentile_s(0.5) == float("inf")
    latencies.advance(3_600.0)
    assert latencies.percentile_s(0.5) is None
