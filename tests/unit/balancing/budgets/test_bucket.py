"""A bucket that refills evenly."""

import pytest

from penstock.balancing.budgets.bucket import Bucket


def test_it_is_full_at_first_and_refills_evenly() -> None:
    bucket = Bucket(600, 60.0, 0.0)
    bucket.take(600, 0.0)
    assert bucket.level(0.0) == 0.0
    assert bucket.level(1.0) == pytest.approx(10.0)
    assert bucket.level(59.0) == pytest.approx(590.0)
    assert bucket.level(600.0) == 600.0


def test_the_wait_is_the_time_until_it_has_so_much() -> None:
    bucket = Bucket(600, 60.0, 0.0)
    bucket.take(600, 0.0)
    wait_s = bucket.wait_s(100, 0.0)
    assert wait_s == pytest.approx(10.0)
    assert not bucket.has(100, wait_s - 0.01)
    assert bucket.has(100, wait_s + 0.01)


def test_more_than_it_holds_goes_from_a_full_one_and_leaves_it_below_zero() -> None:
    bucket = Bucket(100, 60.0, 0.0)
    assert bucket.has(1_000, 0.0)
    bucket.take(1_000, 0.0)
    assert bucket.level(0.0) == -900.0
    assert bucket.wait_s(1_000, 0.0) == pytest.approx(600.0)  # until it is full again
    assert not bucket.has(1, 500.0)
    assert bucket.has(1_000, 600.1)


def test_what_is_given_back_fills_it_no_further_than_its_limit() -> None:
    bucket = Bucket(100, 60.0, 0.0)
    bucket.take(50, 0.0)
    bucket.take(-50, 60.0)
    assert bucket.level(60.0) == 100.0


def test_a_clock_that_goes_back_moves_nothing() -> None:
    bucket = Bucket(100, 60.0, 1_000.0)
    bucket.take(60, 1_000.0)
    assert bucket.level(0.0) == 40.0
    assert bucket.level(1_006.0) == pytest.approx(50.0)


@pytest.mark.parametrize(("limit", "level"), [(200, 100.0), (60, 30.0), (20, 10.0)])
def test_of_another_limit_the_same_share_is_left(limit: int, level: float) -> None:
    bucket = Bucket(100, 60.0, 0.0)
    bucket.take(50, 0.0)
    bucket.resize(limit, 0.0)
    assert bucket.level(0.0) == level
