"""What a tenant's requests are charged beforehand, while they run, and at their end."""

from random import Random
from typing import Any

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.budget import (
    CONCURRENT_WAIT_S,
    Bucket,
    Budget,
    Charge,
    Limits,
    OverBudget,
)
from penstock.balancing.lease import Lease
from tests.unit.balancing.admission.door import ready

LIMIT_NAMES = ("requests_per_minute", "requests_per_day", "tokens_per_minute", "tokens_per_day")


def budget(**limits: int) -> Budget:
    return Budget(Limits(**limits), 0.0)


def over(each: Budget, tokens: float, now_s: float = 0.0) -> tuple[str, float]:
    """The limit that is reached, and the wait."""
    with pytest.raises(OverBudget) as raised:
        each.reserve(tokens, now_s)
    return raised.value.limit, raised.value.wait_s


def left(each: Budget, now_s: float = 0.0) -> dict[str, float]:
    buckets = each.requests | each.tokens
    return {name: bucket.level(now_s) for name, bucket in buckets.items()}


def test_many_at_once_use_no_more_than_one_after_another() -> None:
    each = budget(tokens_per_minute=100)
    sent = 0
    for _ in range(5):
        try:
            each.reserve(40, 0.0)
            sent += 1
        except OverBudget:
            pass
    assert sent == 2
    assert left(each) == {"tokens_per_minute": 20.0}


def test_a_small_budget_serves_a_large_prompt_from_time_to_time() -> None:
    """What asks for more than a minute's budget waits until that is full."""
    each = budget(tokens_per_minute=1_000)
    each.reserve(1_100, 0.0).settle(1, 1_100, 0.0)
    limit, wait_s = over(each, 1_100, 1.0)
    assert limit == "tokens_per_minute"
    assert wait_s == pytest.approx(65.0)
    each.reserve(1_100, 66.1)


def test_a_request_that_nobody_served_costs_nothing() -> None:
    each = budget(requests_per_minute=10, tokens_per_day=1_000)
    before = left(each)
    charge = each.reserve(300, 0.0)
    assert left(each) != before
    charge.settle(0, 0, 0.0)
    assert left(each) == before
    assert not each.running


def test_at_the_end_what_it_took_is_charged_and_only_once() -> None:
    each = budget(requests_per_minute=10, tokens_per_day=1_000)
    charge = each.reserve(300, 0.0)
    for _ in range(3):
        charge.settle(1, 120, 0.0)
    assert left(each) == {"requests_per_minute": 9.0, "tokens_per_day": 880.0}


def test_a_place_is_free_again_when_its_request_has_ended_however_it_ended() -> None:
    each = budget(concurrent=2)
    first, _ = each.reserve(1, 0.0), each.reserve(1, 0.0)
    assert over(each, 1) == ("concurrent", CONCURRENT_WAIT_S)
    first.settle(0, 0, 0.0)
    each.reserve(1, 0.0)


def test_of_two_limits_the_one_that_takes_longer_is_named() -> None:
    each = budget(requests_per_minute=1, tokens_per_day=100)
    each.reserve(100, 0.0)
    limit, wait_s = over(each, 50)
    assert limit == "tokens_per_day"
    assert wait_s == pytest.approx(43_200.0)


def test_who_is_refused_is_charged_nothing() -> None:
    each = budget(requests_per_minute=1, tokens_per_minute=100)
    each.reserve(10, 0.0)
    before = left(each)
    over(each, 10)
    assert left(each) == before
    assert len(each.running) == 1


def streaming(charge: Charge, tokens: int) -> Lease:
    """Its stream has got so many tokens."""
    lease = Lease(ready("a"), Ask("/", prompt_tokens=10, stream=True), 0.0)
    charge.lease = lease
    lease.first_token(0.0)
    lease.generated_tokens = tokens
    return lease


def test_a_stream_that_gets_longer_is_charged_for_it_while_it_runs() -> None:
    each = budget(tokens_per_minute=1_000)
    charge = each.reserve(20, 0.0)
    streaming(charge, 900)
    limit, _ = over(each, 200, 1.0)
    assert limit == "tokens_per_minute"
    level = 1_000 - 910 + 1_000 / 60.0  # what came back in a second
    assert left(each, 1.0)["tokens_per_minute"] == pytest.approx(level)
    charge.settle(1, 910, 1.0)
    assert left(each, 1.0)["tokens_per_minute"] == pytest.approx(level)


def test_a_prompt_that_waits_in_an_engine_is_not_charged_twice() -> None:
    each = budget(tokens_per_minute=1_000)
    charge = each.reserve(20, 0.0)
    charge.lease = Lease(ready("a"), Ask("/", prompt_tokens=500, stream=True), 0.0)
    each.check(1, 1.0)
    assert left(each, 1.0)["tokens_per_minute"] >= 980


@pytest.mark.parametrize("name", LIMIT_NAMES)
def test_a_reload_keeps_what_was_used(name: str) -> None:
    each = budget(**{name: 100})
    charge = each.reserve(1, 0.0)
    each.follow(Limits(**{name: 50}), 0.0)
    assert left(each) == {name: 49.5}
    charge.settle(1, 1, 0.0)
    assert left(each) == {name: 49.5}
    each.follow(Limits(), 0.0)
    assert left(each) == {}
    each.reserve(1e9, 0.0)


def test_whatever_happens_the_levels_are_what_was_taken() -> None:
    """A thousand requests that end in every way, at one moment: nothing refills."""
    rng = Random(5)
    each = budget(requests_per_day=10**6, tokens_per_day=10**9, concurrent=50)
    running: list[Charge] = []
    requests = 0
    tokens = 0.0
    refused = 0
    for _ in range(1_000):
        if running and rng.random() < 0.4:
            charge = running.pop(rng.randrange(len(running)))
            taken: dict[str, Any] = {"requests": rng.randint(0, 1)}
            taken["tokens"] = rng.randint(0, 5_000) if taken["requests"] else 0
            charge.settle(**taken, now_s=0.0)
            charge.settle(**taken, now_s=0.0)
            requests += taken["requests"]
            tokens += taken["tokens"]
        else:
            try:
                running.append(each.reserve(rng.randint(1, 5_000), 0.0))
            except OverBudget:
                refused += 1
    for charge in running:
        charge.settle(0, 0, 0.0)
    assert refused
    assert left(each) == {"requests_per_day": 10**6 - requests, "tokens_per_day": 10**9 - tokens}


# A bucket that refills evenly --------------------------------------------------------------


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
