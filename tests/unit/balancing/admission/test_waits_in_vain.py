"""No request waits in vain: behind what cannot go, for a turn that never comes, or for too long."""

from typing import Any

import pytest

from penstock.balancing.admission.queued_request import QueuedRequest
from penstock.balancing.backend import State
from penstock.balancing.engine_report import EngineReport
from penstock.balancing.fleet import Fleet, Pool
from tests.unit.balancing.admission.door import FILLS, FLOOR, HIGH_LOW, Door, full
from tests.unit.balancing.admission.test_fairness import BOUND, Served, spread
from tests.unit.balancing.admission.test_parked import set_state, two_pools

LONG = 30_000


def two_models(**rules: Any) -> Door:
    """Backend a serves only model m and has a long prompt. Backend b serves only n and is idle."""
    door = Door("a", "b", **rules)
    door.backends[0].models, door.backends[1].models = {"m": b""}, {"n": b""}
    door.enter(LONG, model="m", name="before")
    return door


def wakes(door: Door, from_s: float, to_s: float) -> None:
    for tick in range(round((to_s - from_s) / 0.05) + 1):
        door.wake(from_s + 0.05 * tick)


@pytest.mark.parametrize(("tenants", "each", "name"), [(1, 20, "0"), (13, 2, ""), (40, 2, "")])
def test_requests_for_a_busy_model_do_not_delay_one_for_an_idle_model(
    tenants: int, each: int, name: str
) -> None:
    """Neither another one of their tenant, nor that of another tenant."""
    door = two_models()
    for number in range(tenants):
        for _ in range(each):
            door.enter(FILLS, 0.01, model="m", name=f"{number}")
    other = door.enter(FILLS, 0.02, model="n", name=name)
    wakes(door, 0.05, 0.5)
    assert door.is_sent(other)


def test_a_high_class_that_waits_for_a_busy_model_does_not_delay_a_low_one_for_an_idle_model() -> (
    None
):
    door = two_models(**HIGH_LOW)
    assert door.enter(FILLS, 0.01, model="m", name="high").waits
    wakes(door, 0.05, 1.0)
    low = door.enter(100, 1.0, model="n", name="low", rank=1)
    wakes(door, 1.0, 1.5)
    assert door.is_sent(low)


def test_a_class_has_its_share_though_its_first_request_finds_no_room() -> None:
    door = Door("a", kv_tokens=300_000, **FLOOR)
    for _ in range(40):
        door.first(door.enter(1_900, name="others", output_tokens=2_000.0), 0.1)
    door.enter(FILLS, 0.2, name="others", max_tokens=1)
    blocked = door.enter(240_000, 0.2, name="blocked", rank=1)
    victim = door.enter(100, 0.3, name="victim", rank=1, max_tokens=1)
    for _ in range(60):
        door.enter(FILLS, 0.3, name="high", max_tokens=1)
    now_s = 0.4
    sent: list[QueuedRequest] = []
    while len(sent) < 40:
        door.open_up(now_s)
        sent += door.wake(now_s)
        now_s += 0.1
    assert blocked.waits
    assert door.is_sent(victim)


def test_a_pool_without_any_backend_parks_its_requests() -> None:
    """Service discovery has found none yet, or the fleet was scaled to zero."""
    door = Door("a", park_s=60.0)
    door.fleet = Fleet((Pool("p", (), door.policy),))
    assert door.enter(100).waits


def test_a_request_that_comes_while_a_backend_is_back_for_a_moment_is_parked() -> None:
    door = Door("a", park_s=60.0)
    door.backends[0].state = State.STARTING
    first = door.enter(10, 0.0, deadline_s=30.0, impatient=False)
    door.wake(0.05)
    door.backends[0].state = State.READY
    second = door.request(FILLS, 10.0, deadline_s=30.0, impatient=False)
    assert door.admission.enter(second, 10.0) is None  # before the wake of that turn
    door.backends[0].state = State.STARTING
    door.wake(10.1)
    assert door.told == []
    assert first.waits
    assert second.waits


@pytest.mark.parametrize(("tenants", "each"), [(5, 30), (13, 3), (90, 2)])
def test_who_fits_is_found_behind_any_number_that_do_not(tenants: int, each: int) -> None:
    """Its counter is above theirs, so it is looked at after all of them."""
    door = Door("a", kv_tokens=40_000)
    door.first(door.enter(32_000, name="resident", output_tokens=4_000.0), 0.0)
    door.finish(door.enter(1_900, name="victim"), 0.0)
    for number in range(tenants * each):
        assert door.enter(9_000, 0.1, name=f"tenant {number % tenants}", max_tokens=1).waits
    victim = door.enter(500, 0.3, name="victim", max_tokens=16)
    wakes(door, 0.3, 5.0)
    assert door.is_sent(victim)


def test_a_low_class_that_yields_leaves_no_tenant_of_a_high_class_without_a_try() -> None:
    """A dispatch has tries for twelve tenants. The others are tried in the next one."""
    door = Door("a", kv_tokens=40_000, **HIGH_LOW)
    resident = door.enter(32_000, name="resident", output_tokens=4_000.0)
    door.first(resident, 0.0)
    high = [door.enter(9_000, 0.1, name=f"tenant {each % 13}", max_tokens=1) for each in range(26)]
    door.enter(9_000, 0.1, name="low", rank=1, max_tokens=1)
    wakes(door, 0.5, 2.0)
    door.finish(resident, 2.0)
    now_s = 2.1
    for _ in range(100):
        for request in door.wake(now_s):
            door.first(request, now_s + 0.05)
            door.finish(request, now_s + 0.1, 1)
        now_s += 0.2
    assert all(door.is_sent(each) for each in high)


def test_clients_that_leave_do_not_close_a_backend_to_others() -> None:
    """A sends prompts that find no room beside the long streams of B, and gives up after 8 s.

    The backend is kept for one of these after the other, and nothing of A is ever sent."""
    door, now_s = Door("a", kv_tokens=100_000), 0.5
    for _ in range(4):
        door.first(door.enter(5_000, name="B", output_tokens=3_000.0), 0.1)
    huge: list[QueuedRequest] = []
    short: list[QueuedRequest] = []
    waits_s = []
    for _ in range(60):
        now_s += 1.0
        door.backends[0].take(EngineReport(now_s, running=4, kv_usage=0.2, kv_tokens=100_000))
        huge += [door.enter(90_000, now_s, name="A", max_tokens=10) for _ in range(10 - len(huge))]
        for request in [each for each in huge if now_s - each.since_s > 8.0]:
            door.admission.leave(request, now_s)
            huge.remove(request)
        short.append(door.enter(100, now_s, name="B", max_tokens=10))
        wakes(door, now_s, now_s + 0.9)
        for request in [each for each in short if door.is_sent(each)]:
            waits_s.append(now_s - request.since_s)
            door.finish(request, now_s + 0.9, 10)
            short.remove(request)
    assert not any(door.is_sent(each) for each in huge)
    assert sum(each > 1.0 for each in waits_s) < 0.1 * len(waits_s)


def test_a_short_deadline_is_over_behind_longer_ones() -> None:
    """Clients of one tenant tell different times, and the first ones find no room."""
    door = full("a")
    door.backends[0].max_requests = 1
    for _ in range(6):
        door.enter(FILLS, 0.0, name="x", deadline_s=600.0)
    short = door.enter(FILLS, 0.0, name="x", deadline_s=5.0)
    for tick in range(300):
        door.wake(0.05 * tick)
    assert not short.waits
    assert short in door.refused


@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 3.0)])
def test_over_any_interval_they_are_given_the_same_by_weight(weights: tuple[float, float]) -> None:
    """Until the first answers are whole, a dozen requests are charged too little."""
    for seed in range(150):
        served = Served(seed, weights)
        served.run(90)
        learnt = len(served.differences)
        assert spread(served.differences) <= 2 * BOUND, seed
        served.run(180)
        assert spread(served.differences[learnt:]) <= BOUND, seed


def test_a_backend_that_serves_others_may_have_a_request_that_it_failed_again_after_a_second() -> (
    None
):
    """Otherwise it waits for a minute beside a healthy backend, and is told that there is none."""
    door = Door("a", park_s=60.0)
    request = door.request(100, tried=door.backends)
    door.come(request, 0.0)
    assert request.waits
    door.enter(100, 0.1, name="other")
    wakes(door, 0.2, 0.9)
    assert request.waits
    wakes(door, 1.0, 2.0)
    assert door.is_sent(request)


# How many streams an engine runs ---------------------------------------------------------------


def test_answers_that_are_nearly_as_long_as_their_limit_end_without_a_fault() -> None:
    """Each may come to a third of a token more than is expected."""
    door = Door("a", kv_tokens=40_000)
    for tokens in (15, 16, 16):
        door.finish(door.enter(10, name="x"), 0.0, tokens)
    requests = [door.enter(10, 1.0, name="x", max_tokens=16) for _ in range(2)]
    for request in requests:
        door.finish(request, 2.0, 16)
    assert door.backends[0].own.idle


@pytest.mark.parametrize("number", [12, 40, 200])
def test_parked_requests_that_no_pool_serves_hide_none_that_another_pool_serves(
    number: int,
) -> None:
    """A sweep tries twelve, and the next one begins with the same twelve."""
    door = two_pools()
    set_state(door, State.STARTING)
    for each in range(number):
        door.enter(100, 0.0, model=f"model-{each}", name="x")
    last = door.enter(100, 0.1, model="m", name="x")
    second = door.backends[1]
    second.state, second.models = State.READY, {"m": b""}
    for tick in range(100):
        door.wake(1.0 + 0.1 * tick)
    assert door.is_sent(last)
