"""What a tenant leaves to others of a backend, and what it may take when nobody else asks."""

from typing import Any

import pytest

from penstock.balancing.admission.queued_request import QueuedRequest, WaitReason
from tests.unit.balancing.admission.door import FLOOR, HIGH_LOW, Door, asks, taught

KV_TOKENS = 40_000


def fill(
    door: Door, name: str, now_s: float, tokens: int = 1_000, most: int = 200, **fields: Any
) -> list[QueuedRequest]:
    """As many requests as are sent at once. Each has its first token."""
    door.report(now_s)
    fields = {"max_tokens": 10} | fields
    found: list[QueuedRequest] = []
    for _ in range(most):
        request = door.enter(tokens, now_s, name=name, **fields)
        if not door.is_sent(request):
            door.admission.leave(request, now_s)
            return found
        door.first(request, now_s)
        found.append(request)
    return found


# Alone -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"max_tokens": 4_000, "output_tokens": 10.0}])
def test_one_tenant_alone_has_the_whole_cache(fields: dict[str, Any]) -> None:
    """Also if its answers may become far longer than is expected."""
    door = Door("a", kv_tokens=KV_TOKENS)
    assert 38 <= len(fill(door, "x", 1.0, **fields)) <= 40


def test_one_tenant_alone_has_all_places() -> None:
    door = Door("a")
    door.backends[0].max_requests = 16
    assert len(fill(door, "x", 1.0)) == 16


@pytest.mark.parametrize(("pause_s", "alone"), [(0.5, False), (10.0, True)])
def test_who_has_not_asked_for_seconds_binds_nobody(pause_s: float, *, alone: bool) -> None:
    door = Door("a")
    door.backends[0].max_requests = 16
    asks(door, "other", 10.0)
    assert (len(fill(door, "x", 10.0 + pause_s)) == 16) is alone


# Beside others -----------------------------------------------------------------------------


def test_a_tenant_waits_for_the_last_places_and_says_so() -> None:
    door = Door("a")
    door.backends[0].max_requests = 16
    asks(door, "other", 10.0)
    fill(door, "x", 10.1)
    assert door.forecast(1_000, 10.2, name="x", max_tokens=10).reason is WaitReason.SHARE
    assert door.forecast(1_000, 10.2, name="other", max_tokens=10).reason is None


def test_others_need_not_spare_anything_for_who_has_most() -> None:
    door = Door("a")
    door.backends[0].max_requests = 16
    assert len(fill(door, "most", 10.0, most=12)) == 12
    assert len(fill(door, "other", 10.1)) == 4


@pytest.mark.parametrize("limit", ["max_requests", "sequences"])
def test_the_last_places_are_left_to_others_in_proportion(limit: str) -> None:
    counts = []
    for tokens in (4_000, 20):  # of which x asks for 16,000 in that second
        door = Door("a")
        if limit == "max_requests":
            door.backends[0].max_requests = 32
        else:
            asks(door, "x", 1.0)
            door.pool.capacities[door.backends[0]].most_sequences = 32.0
        asks(door, "other", 10.0, tokens=tokens)
        counts.append(len(fill(door, "x", 10.1)))
    assert counts == [30, 32]


def test_a_tenant_with_a_place_more_than_half_waits_for_the_last_one() -> None:
    door = Door("a")
    door.backends[0].max_requests = 8
    asks(door, "victim", 10.0)
    assert len(fill(door, "attacker", 10.1)) == 7
    victim = door.enter(10, 10.5, name="victim")
    assert door.is_sent(victim)


# Higher classes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank", "now_s", "least", "most"),
    [(1, 10.1, 34, 36), (1, 12.5, 38, 39), (0, 10.1, 38, 39)],
    ids=["a lower one leaves a tenth", "not to one that does not ask", "nor a higher one"],
)
def test_what_a_class_leaves_of_the_cache_to_another(
    rank: int, now_s: float, least: int, most: int
) -> None:
    door = Door("a", kv_tokens=KV_TOKENS, **HIGH_LOW)
    asks(door, "other", 10.0, rank=1 - rank)
    assert least <= len(fill(door, "mine", now_s, rank=rank)) <= most
    if least == 34:
        assert door.is_sent(door.enter(3_500, 10.2, name="other", max_tokens=10))


@pytest.mark.parametrize(("floor", "least", "most"), [(0.0, 0.0, 0.02), (0.1, 0.05, 0.15)])
def test_a_class_with_a_floor_has_its_share_of_a_full_cache(
    floor: float, least: float, most: float
) -> None:
    """Higher requests take what it leaves again and again."""
    rules = FLOOR | {"shares": (0.0, floor)}
    door, low, all_ = Door("a", kv_tokens=KV_TOKENS, **rules), 0, 0
    for number in range(400):
        now_s = 0.1 * number
        door.report(now_s)
        for _ in range(3):
            door.enter(2_000, now_s, name="high", max_tokens=10)
        door.enter(2_000, now_s, name="low", rank=1, max_tokens=10)
        door.wake(now_s)
        running = door.running
        for request in running:
            if door.leases[request].first_token_s is None:
                door.first(request, now_s)
        if len(running) >= 17:
            door.finish(running[0], now_s, 10)
            all_ += 1
            low += running[0].rank
    assert least <= low / all_ <= most


# Surprises ---------------------------------------------------------------------------------

SHORT_THEN_LONG: dict[str, Any] = {"max_tokens": 2_000}


def with_short_answers(*names: str) -> Door:
    door = Door("a", kv_tokens=KV_TOKENS)
    for name in names:
        taught(door, name, 4)
    door.report(100.0)
    return door


def test_short_answers_that_become_long_leave_room_to_others() -> None:
    door = with_short_answers("x", "other")
    asks(door, "other", 100.0, tokens=200)
    sent = fill(door, "x", 100.1, tokens=100, **SHORT_THEN_LONG)
    assert 5 <= len(sent) <= 20  # of 2,000 tokens each, and 40,000 in all
    for request in sent:
        door.leases[request].tokens(1_900)
    door.report(101.0)
    for number in range(4):
        victim = door.enter(200, 101.0, name="other", max_tokens=32)
        assert door.is_sent(victim), number
        door.first(victim, 101.0)


@pytest.mark.parametrize(
    ("other_asks", "fields", "least", "most"),
    [
        (False, SHORT_THEN_LONG, 200, 200),
        (True, {"choices": 4, "max_tokens": 1_000}, 3, 12),
        (True, {"max_tokens": 4}, 200, 200),
    ],
    ids=["alone they take all of it", "choices count each", "limits as short as the answers"],
)
def test_how_many_may_come_by_surprise(
    fields: dict[str, Any], least: int, most: int, *, other_asks: bool
) -> None:
    door = with_short_answers("x", "other")
    if other_asks:
        asks(door, "other", 100.0, tokens=200)
    assert least <= len(fill(door, "x", 100.1, tokens=100, **fields)) <= most


def test_the_first_answer_of_a_tenant_may_always_come() -> None:
    door = with_short_answers("x", "y", "other")
    asks(door, "other", 100.0, tokens=200)
    fill(door, "x", 100.1, tokens=100, **SHORT_THEN_LONG)
    first = door.enter(100, 100.2, name="y", max_tokens=8_000)
    assert door.is_sent(first)


def test_a_tenant_with_a_record_may_take_as_much_by_surprise_as_it_was_given() -> None:
    """Its long answers have filled the cache several times in the last minute."""
    counts = []
    for answers in (0, 100):
        door = with_short_answers("other")
        for number in range(answers):
            door.finish(door.enter(10, 99.0 + 0.005 * number, name="x"), 99.9, 1_000)
        asks(door, "other", 100.0, tokens=200)
        counts.append(len(fill(door, "x", 100.1, tokens=10, max_tokens=4_000)))
    new, known = counts
    assert new <= 20
    assert known >= 2 * new
