"""The last minutes of one backend: what counts, what is forgotten, and what they take in memory."""

import sys

import pytest

from penstock.proxy.telemetry.pool_metrics import BOUNDS_S, SLOT_S, SLOTS, Lately

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
