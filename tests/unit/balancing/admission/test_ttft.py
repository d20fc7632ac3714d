"""When a request that waits is predicted to have its first token, and when it is refused."""

from math import inf
from typing import Any

import pytest

from penstock.balancing.admission.queued_request import QueuedRequest, TooLate
from penstock.balancing.admission.ttft import (
    FACTOR_MAX,
    HINT_MAX_S,
    HINT_MIN_S,
    LATE,
    SHARE,
    SURELY_LATE,
)
from tests.unit.balancing.admission.door import FILLS, FILLS_S, HIGH_LOW, Door, full

# Predictions -------------------------------------------------------------------------------


def test_the_first_prediction_is_the_work_at_the_assumed_speed() -> None:
    door = full("a", "b")
    assert [request.predicted_s for request in door.leases] == [0.0, 0.0]  # sent at once
    for number in range(6):
        request = door.enter(FILLS, name="x")
        # What the engines have and what waits is shared by two, its own prompt is on one.
        expected_s = (2 + number) * FILLS_S / 2 + FILLS_S
        assert request.predicted_s == pytest.approx(expected_s, rel=0.02)


@pytest.mark.parametrize(("rules", "rank"), [({}, 0), (HIGH_LOW, 1)])
def test_behind_a_flood_another_tenant_or_a_higher_class_waits_little_and_is_not_refused(
    rules: dict[str, Any], rank: int
) -> None:
    door = full("a", **rules)
    for _ in range(50):
        door.enter(FILLS, name="flood", rank=rank)
    assert door.enter(FILLS, name="flood", rank=rank).predicted_s > 50 * FILLS_S
    assert door.enter(FILLS, 0.02, name="flood", rank=rank, deadline_s=5.0) in door.refused
    other = door.enter(FILLS, 0.02, name="other", deadline_s=1.0 if rank else 5.0)
    assert other.waits
    assert other.predicted_s < (3 if rank else 4) * FILLS_S


def serve(door: Door, now_s: float, until_s: float, each_s: float, rank: int = 0) -> float:
    """A prompt is served in this time, and nine always wait. Returns when that ends."""
    while now_s < until_s:
        while door.admission.waiting < 9:
            door.enter(FILLS, now_s, name="x", rank=rank)
        now_s += each_s
        door.open_up(now_s)
        door.wake(now_s)
    return now_s


@pytest.mark.parametrize("slower", [0.6, 1.0, 3.0])
def test_predictions_come_true_once_some_have_waited(slower: float) -> None:
    """Whatever the assumed speed was."""
    door, each_s = full("a"), slower * FILLS_S
    began_s = now_s = serve(door, 0.0, 60.0, each_s)
    request = door.enter(FILLS, now_s, name="x")
    while not door.is_sent(request):
        now_s += each_s
        door.open_up(now_s)
        door.wake(now_s)
    now_s += each_s
    assert request.predicted_s == pytest.approx(now_s - began_s, 0.15)


def test_what_waits_behind_a_higher_class_goes_at_the_pace_that_this_leaves() -> None:
    door = full("a", shares=(0.0, 0.25), classes=("high", "low"))
    now_s = 0.0
    for _ in range(200):
        for rank in (0, 1):
            while door.pool.queue.waiting_of(f"{rank}") < 5:
                door.enter(FILLS, now_s, name=f"{rank}", rank=rank)
        now_s += FILLS_S
        door.open_up(now_s)
        door.wake(now_s)
    high, low = (door.enter(FILLS, now_s, name=f"{rank}", rank=rank) for rank in (0, 1))
    assert 2.0 < low.predicted_s / high.predicted_s < 8.0


# What waits teach --------------------------------------------------------------------------


def one_place() -> Door:
    door = Door("a")
    door.backends[0].max_requests = 1
    return door


def waits_longer(door: Door, name: str, count: int, times: float, tokens: int = FILLS) -> None:
    """So many requests of a tenant wait for so many times of what was predicted."""
    for number in range(count):
        now_s = 1_000.0 * (number + 1)
        before = door.enter(10, now_s, name="before")
        request = door.enter(tokens, now_s, name=name)
        assert request.waits
        door.finish(before, now_s + 0.5 * times * request.raw_s)
        door.wake(now_s + 0.5 * times * request.raw_s)
        door.finish(request, now_s + times * request.raw_s)


def factor(door: Door, name: str, tokens: int = FILLS) -> float:
    """How far what a tenant is told is off what the work would take."""
    before = door.enter(10, 1e6, name="before")
    request = door.enter(tokens, 1e6, name=name)
    assert request.waits
    door.admission.leave(request, 1e6)
    door.finish(before, 1e6)
    return request.predicted_s / request.raw_s


@pytest.mark.parametrize(
    ("count", "name", "tokens", "least", "most"),
    [
        (1, "x", FILLS, 1.0001, 1.05),  # each by a little
        (60, "x", FILLS, 0.9 * FACTOR_MAX, 1.1 * FACTOR_MAX),
        (30, "x", FILLS - 100, 1.5, FACTOR_MAX),
        (30, "x", 200, 1.0, 1.0),  # nothing for prompts of another size, and other tenants
        (30, "y", FILLS, 1.0, 1.0),
    ],
)
def test_waits_that_are_longer_than_predicted_correct_predictions_up_to_a_bound(
    count: int, name: str, tokens: int, least: float, most: float
) -> None:
    door = one_place()
    waits_longer(door, "x", count, 50.0)
    assert least - 1e-6 <= factor(door, name, tokens) <= most + 1e-6


def test_requests_that_did_not_wait_teach_nothing() -> None:
    door = one_place()
    for second in range(50):
        request = door.enter(FILLS, float(second), name="x")
        door.finish(request, second + 0.9)
    assert factor(door, "x") == pytest.approx(1.0)


# Refusals on arrival -----------------------------------------------------------------------


def waiting_until_refused(door: Door, deadline_s: float, name: str = "many") -> int:
    """How many of one tenant wait before one is refused."""
    for number in range(1_000):
        request = door.enter(FILLS, 0.01, name=name, deadline_s=deadline_s)
        if request in door.refused:
            return number
        assert request.waits
    raise AssertionError


@pytest.mark.parametrize("deadline_s", [2.0, 5.0, 20.0])
def test_a_request_is_refused_if_its_first_token_is_predicted_too_late(deadline_s: float) -> None:
    door = full("a")
    waiting = waiting_until_refused(door, deadline_s)
    assert waiting * FILLS_S == pytest.approx(SHARE * deadline_s, abs=2 * FILLS_S)
    assert door.admission.waiting == waiting
    assert door.told == []


def test_who_waits_as_long_as_it_takes_is_not_refused() -> None:
    door = full("a")
    for _ in range(200):
        assert door.enter(FILLS, deadline_s=inf).waits


def test_one_that_a_backend_has_failed_is_predicted_to_go_first() -> None:
    """Its client has waited already."""
    door = full("a", "gone")
    door.backends[1].max_requests = 1
    waiting_until_refused(door, 5.0)
    again = door.request(FILLS, name="many", deadline_s=5.0, tried=door.backends[1:])
    door.come(again, 0.02)
    assert again.waits


# A client that leaves at its deadline is impatient. A class only says how long one should wait.


def test_for_an_impatient_client_a_prompt_that_takes_longer_than_its_deadline_is_refused() -> None:
    door = full("a")
    tokens = round(15_000 * 5.0 * SURELY_LATE)
    assert door.enter(tokens, deadline_s=5.0, impatient=True) in door.refused
    in_time = round(15_000 * 5.0 * (SURELY_LATE - 0.05) - FILLS)
    assert door.enter(in_time, deadline_s=5.0, impatient=True).waits


def test_its_class_refuses_no_prompt_because_that_takes_long() -> None:
    door = full("a")
    long = door.enter(2_000_000, 0.01, name="long", deadline_s=30.0, impatient=False)
    assert long.waits
    assert long.predicted_s > 60.0
    door.open_up(0.1)
    assert door.wake(0.1) == [long]
    behind = door.enter(FILLS, 0.2, name="other", deadline_s=30.0, impatient=False)
    assert behind in door.refused


def test_the_hint_says_when_to_come_again_within_what_clients_obey() -> None:
    hints = []
    for tokens in (20_000, 100_000, 1_000_000):
        door = full("a")
        request = door.enter(tokens, deadline_s=0.5)
        hints.append(door.refused[request].retry_after_s)
    assert hints == sorted(hints)
    assert hints[0] >= HINT_MIN_S
    assert hints[-1] == HINT_MAX_S


def test_hints_are_spread_so_that_clients_do_not_come_back_at_once() -> None:
    door = full("a")
    hints = []
    for _ in range(30):
        request = door.enter(60_000, deadline_s=1.0)
        hints.append(door.refused[request].retry_after_s)
    assert len({round(hint, 2) for hint in hints}) > 20
    assert max(hints) <= 2.1 * min(hints)


# Refusals later ----------------------------------------------------------------------------


def test_a_request_whose_time_is_over_is_refused() -> None:
    door = full("a")
    door.backends[0].max_requests = 1
    late, patient = door.enter(100, deadline_s=1.0), door.enter(100, deadline_s=10.0)
    door.wake(LATE - 0.01)
    assert (late.waits, patient.waits) == (True, True)
    assert door.wake(LATE + 0.1) == []
    assert [(request, type(outcome)) for request, outcome in door.told] == [(late, TooLate)]
    assert patient.waits
    assert HINT_MIN_S <= door.refused[late].retry_after_s <= HINT_MAX_S


def test_one_that_would_be_late_where_there_is_room_is_refused_and_not_sent() -> None:
    door = full("a")
    door.backends[0].max_requests = 1
    late = door.enter(FILLS, deadline_s=1.0)
    door.finish(door.running[0], 0.8)
    assert door.wake(0.8) == []  # it takes 0.2 s more
    assert late in door.refused
    assert door.backends[0].own.requests == 0
    assert door.is_sent(door.enter(FILLS, 0.8, deadline_s=1.0))


@pytest.mark.parametrize("parked", [True, False])
def test_many_whose_time_is_over_are_told_in_portions(*, parked: bool) -> None:
    """To tell a thousand clients in one turn would hold up all streams."""
    door = full("a", park_s=60.0)
    door.backends[0].max_requests = 1
    requests: list[QueuedRequest] = []
    for number in range(500):
        request = door.enter(100, 0.01, name=f"{number % 7}", deadline_s=50.0, impatient=not parked)
        requests.append(request)
    portions = []
    for tick in range(40):
        told = len(door.told)
        door.wake(49.0 + 0.2 * tick)
        portions.append(len(door.told) - told)
    assert max(portions) < 100
    assert not any(request.waits for request in requests)
