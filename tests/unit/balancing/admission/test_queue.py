"""Who is next: by class, in a class by what each tenant was given, for a tenant by arrival."""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from penstock.balancing.admission.pool_queue import SEEN_MAX
from penstock.balancing.admission.queued_request import QueuedRequest
from penstock.balancing.engine_report import EngineReport
from tests.unit.balancing.admission.door import FILLS, FLOOR, HIGH_LOW, Door, full


def served(
    door: Door, count: int, again: Callable[[QueuedRequest], None] | None = None
) -> list[QueuedRequest]:
    """The next ones that are sent, each when the one before has ended. Time stands still.

    `again`: is told of each.
    """
    sent: list[QueuedRequest] = []
    while len(sent) < count:
        door.finish(door.running[0], 0.0)
        for request in door.wake(0.0):
            sent.append(request)
            if again is not None:
                again(request)
    return sent


def names(requests: list[QueuedRequest]) -> list[str]:
    return [request.name for request in requests]


def waits(door: Door, tokens: int = FILLS, name: str = "x", rank: int = 0) -> QueuedRequest:
    """One more that waits, with an answer of one token."""
    request = door.enter(tokens, name=name, rank=rank, max_tokens=1)
    assert request.waits
    return request


# One tenant --------------------------------------------------------------------------------


def test_requests_of_a_tenant_go_in_the_order_of_arrival() -> None:
    door = full("a")
    requests = [waits(door, tokens) for tokens in (500, 1, 90, 1_000, 9_000, 20)]
    assert served(door, 6) == requests


def test_a_new_request_does_not_pass_an_older_one_of_its_tenant() -> None:
    """There is room, and the wake for it is still to come."""
    door = full("a")
    older = door.enter(FILLS, 0.01, name="mine")
    door.open_up(0.1)
    newer = door.request(FILLS, 0.1, name="mine")
    assert door.admission.enter(newer, 0.1) is None
    assert door.wake(0.1) == [older]


def test_one_that_a_backend_has_failed_goes_before_the_others_of_its_tenant() -> None:
    door = full("a", "gone", **HIGH_LOW)
    high, low = waits(door), waits(door, rank=1)
    again = door.request(FILLS, rank=1, name="x", tried=door.backends[1:])
    again.retry = True
    door.come(again, 0.0)
    door.backends[1].max_requests = 1
    assert served(door, 3) == [high, again, low]
    assert door.backends[0].own.retries == 1


def test_a_backend_that_has_failed_a_request_does_not_get_it_again() -> None:
    door = full("a", "b")
    request = door.request(100, tried=door.backends[:1])
    door.come(request, 0.0)
    door.open_up(0.05, 0)
    assert door.wake(0.05) == []
    door.open_up(0.2, 1)
    assert door.wake(0.2) == [request]
    assert door.where(request) == "b"


@pytest.mark.parametrize("long", [1, 5])
def test_short_prompts_are_sent_though_a_few_long_ones_of_their_tenant_find_no_room(
    long: int,
) -> None:
    door = Door("a", kv_tokens=40_000)
    door.first(door.enter(32_000, name="resident", output_tokens=4_000.0), 0.0)
    for _ in range(long):
        assert door.enter(9_000, 0.1, name="x", max_tokens=1).waits
    short = [door.enter(200, 0.2, name="x", max_tokens=16) for _ in range(3)]
    for tick in range(5):
        door.wake(0.3 + 0.1 * tick)
    assert all(door.is_sent(request) for request in short)


def test_whose_client_leaves_loses_its_turn() -> None:
    door = full("a")
    leaving, other = waits(door), waits(door)
    changes = door.changes
    door.admission.leave(leaving, 0.0)
    assert door.changes == changes + 1  # others may go now
    door.admission.leave(leaving, 0.0)  # and again: nothing
    assert door.admission.waiting == 1
    assert served(door, 1) == [other]
    assert [request for request, _ in door.told] == [other]


def test_long_answers_of_another_tenant_let_few_of_its_prompts_pass() -> None:
    """A counter counts answers, too. What is ahead is counted in prompt tokens."""
    door = full("a")
    queue = door.admission.pools["p"].queue
    other, mine = queue.tenant("other"), queue.tenant("mine")
    other.answered(4_500)
    for _ in range(10):
        door.enter(1_000, name="other")
    mine.served = other.served + 20_000.0  # as much as two of its requests are charged for
    assert queue.ahead_tokens(mine, 0, 0) == 2_000.0


# Tenants -----------------------------------------------------------------------------------


def test_the_tenant_that_was_given_least_is_next() -> None:
    door = full("a")
    sizes = {"first": 9_000, "second": 3_000}
    for _ in range(30):
        for name, tokens in sizes.items():
            waits(door, tokens, name)
    given: Counter[str] = Counter()
    for name in names(served(door, 30)):
        given[name] += sizes[name]
        assert abs(given["first"] - given["second"]) <= 9_010


def test_a_tenant_that_was_given_too_much_waits_until_others_have_had_as_much() -> None:
    door = full("a")
    for _ in range(20):
        waits(door, FILLS, "other")
    door.finish(door.running[0], 0.0)
    assert door.is_sent(door.enter(30_000, name="greedy", max_tokens=1))
    for _ in range(10):
        waits(door, FILLS, "greedy")
    assert names(served(door, 8)) == ["other"] * 8


@pytest.mark.parametrize("waiting", [True, False])
def test_a_tenant_that_comes_back_after_a_pause_saves_nothing_up(*, waiting: bool) -> None:
    """Also if nobody waited meanwhile."""
    door = full("a")
    if waiting:
        for _ in range(300):
            waits(door, FILLS, "steady")
        served(door, 200)
    else:
        for _ in range(200):
            door.finish(door.running[0], 0.0)
            door.enter(FILLS, name="steady", max_tokens=1)
        for _ in range(50):
            waits(door, FILLS, "steady")
    for _ in range(50):
        waits(door, FILLS, "away")
    assert 18 <= names(served(door, 40)).count("away") <= 22


def test_a_tenant_that_is_sent_at_once_saves_nothing_up_either() -> None:
    """It comes when there is room, and does not wait, while another one always has some waiting."""
    door = full("a")
    for _ in range(60):
        waits(door, FILLS, "steady")
    passed = 0
    for _ in range(40):
        door.finish(door.running[0], 0.0)
        passed += door.is_sent(door.enter(FILLS, name="away", max_tokens=1))
    assert 15 <= passed + sum(each.name == "away" for each, _ in door.told) <= 25


@pytest.mark.parametrize("weights", [(1.0, 3.0), (0.5, 2.0)])
def test_tenants_have_tokens_by_their_weights(weights: tuple[float, float]) -> None:
    door, rng = full("a", weights={"one": weights[0], "two": weights[1]}), Random(7)
    given: Counter[str] = Counter()

    def again(request: QueuedRequest) -> None:
        given[request.name] += request.ask.prompt_tokens
        waits(door, rng.randint(FILLS, 3 * FILLS), request.name)

    for name in ("one", "two") * 3:
        waits(door, FILLS, name)
    served(door, 1_500, again)
    assert given["two"] / given["one"] == pytest.approx(weights[1] / weights[0], 0.03)


def test_a_reload_changes_weights() -> None:
    door = full("a")
    for _ in range(60):
        waits(door, FILLS, "one")
        waits(door, FILLS, "two")
    served(door, 10)
    door.admission.follow(type(door.admission.rules)(enabled=True, weights={"two": 4.0}))
    assert 30 <= names(served(door, 40)).count("two") <= 34


# Classes -----------------------------------------------------------------------------------


def test_a_class_is_served_before_all_lower_ones() -> None:
    door, rng = full("a", shares=(0.0,) * 3, classes=("a", "b", "c")), Random(1)
    for _ in range(90):
        waits(door, rng.randint(1, 9_000), rng.choice("xyz"), rng.randrange(3))
    ranks = [request.rank for request in served(door, 90)]
    assert ranks == sorted(ranks)


@pytest.mark.parametrize("floor", [0.1, 0.3])
@pytest.mark.parametrize("sizes", [(FILLS, FILLS), (FILLS, 9_000), (9_000, FILLS)])
def test_a_lower_class_has_its_floor_while_higher_ones_never_end(
    sizes: tuple[int, int], floor: float
) -> None:
    door, rng = full("a", shares=(0.0, floor), classes=("high", "low")), Random(3)
    given = [0, 0]

    def again(request: QueuedRequest) -> None:
        given[request.rank] += request.ask.prompt_tokens
        size = sizes[request.rank]
        waits(door, rng.randint(size // 2, size), f"{request.rank}", request.rank)

    for rank in (0, 1):
        for _ in range(5):
            waits(door, sizes[rank], f"{rank}", rank)
    served(door, 600, again)
    assert given[1] / sum(given) == pytest.approx(floor, rel=0.15)


def test_a_lower_class_has_its_floor_while_higher_requests_never_wait() -> None:
    """Each comes when there is room."""
    door = full("a", **FLOOR)
    for _ in range(60):
        waits(door, FILLS, "low", 1)
    for _ in range(200):
        door.finish(door.running[0], 0.0)
        door.enter(FILLS, name="high", max_tokens=1)
    low = sum(request.rank for request in door.leases)
    assert 0.08 <= low / len(door.leases) <= 0.12


def test_a_lower_class_saves_nothing_up_while_none_of_it_waits() -> None:
    door = full("a", shares=(0.0, 0.5), classes=("high", "low"))
    for _ in range(100):
        waits(door, FILLS, "high")
    served(door, 50)
    for _ in range(20):
        waits(door, FILLS, "low", 1)
    assert 8 <= sum(request.rank for request in served(door, 20)) <= 12


@pytest.mark.parametrize("tokens", [8_000, 1_200])
@pytest.mark.parametrize(("waited_s", "passes"), [(0.1, True), (1.0, False)])
def test_a_lower_class_passes_a_higher_one_only_for_a_moment(
    tokens: int, waited_s: float, *, passes: bool
) -> None:
    """It fits beside a stream, and the higher one does not."""
    door = Door("a", kv_tokens=10_000, **HIGH_LOW)
    door.first(door.enter(9_500 - min(tokens, 5_000), name="before", max_tokens=10), 0.0)
    door.first(door.enter(500, name="other", max_tokens=10), 0.0)
    high = door.enter(tokens, 1.0, name="high", max_tokens=10)
    assert high.waits
    low = door.enter(100, 1.0 + waited_s, name="low", rank=1, max_tokens=10)
    door.wake(1.0 + waited_s)
    assert door.is_sent(low) is passes


def test_nobody_makes_way_for_one_that_waits_for_answers_of_its_own_tenant() -> None:
    """A low class sends short prompts, while a high one waits until it has less under way."""
    door = Door("a", kv_tokens=20_000, **HIGH_LOW)
    fields: dict[str, Any] = {"max_tokens": 2_000, "output_tokens": 10.0}
    door.enter(100, 0.0, name="other", max_tokens=1)
    now_s, greedy = 0.0, []
    for number in range(60):
        now_s = 0.1 * number
        door.backends[0].take(EngineReport(now_s, running=1, kv_tokens=20_000))
        door.enter(100, now_s, name="other", max_tokens=1)
        greedy.append(door.enter(100, now_s, name="greedy", **fields))
        if door.is_sent(greedy[-1]):
            door.first(greedy[-1], now_s)
    assert greedy[-1].waits
    low = door.enter(100, now_s + 1.0, name="low", rank=1, max_tokens=100)
    door.wake(now_s + 1.0)
    assert door.is_sent(low)


# Every waiting request gets an answer ------------------------------------------------------


def two_models(**rules: Any) -> Door:
    """Backend a serves only model m and has a long prompt. Backend b serves only n and is idle."""
    door = Door("a", "b", **rules)
    door.backends[0].models, door.backends[1].models = {"m": b""}, {"n": b""}
    door.enter(30_000, model="m", name="before")
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


@pytest.mark.parametrize("longer", [6, 40, 3 * SEEN_MAX])
def test_a_short_deadline_is_over_behind_longer_ones(longer: int) -> None:
    """Clients of one tenant tell different times, and the first ones find no room."""
    door = full("a")
    door.backends[0].max_requests = 1
    for _ in range(longer):
        door.enter(10, 0.0, name="x", deadline_s=600.0)
    short = door.enter(10, 0.0, name="x", deadline_s=5.0)
    assert short not in door.refused
    for tick in range(300):
        door.wake(0.05 * tick)
    assert not short.waits
    assert short in door.refused


# How many streams an engine runs ---------------------------------------------------------------
