"""Somebody who wants more than its share, beside somebody whom that must not hurt."""

from contextlib import suppress
from typing import Any

import pytest

from penstock.balancing.admission.admission import Rules
from penstock.balancing.admission.ticket import Refused, Ticket
from penstock.balancing.backend import State
from penstock.balancing.gate import NoBackend
from penstock.balancing.lease import Lease
from tests.unit.balancing.admission.lines import FILLS, Door, full

HALF: dict[str, Any] = {"shares": (0.0, 0.0), "classes": ("high", "low")}


def test_a_request_with_a_great_many_answers_keeps_nobody_else_waiting() -> None:
    """It finds no room for all of them in a cache that is in use."""
    door = Door("a", "b", kv_tokens=100_000)
    for _ in range(12):
        lease = door.leases[door.enter(1_900, name="others", output_tokens=3_000.0)]
        lease.first_token(0.1)
    many = [door.enter(20, 1.0, name="many", choices=2_000) for _ in range(10)]
    assert any(ticket.waits for ticket in many)
    victim = door.enter(500, 1.1, name="victim")
    door.wake(1.1)
    assert victim in door.leases


def test_it_keeps_no_higher_class_waiting_either() -> None:
    door = Door("a", "b", kv_tokens=100_000, **HALF)
    for _ in range(12):
        lease = door.leases[door.enter(1_900, name="others", rank=1, output_tokens=3_000.0)]
        lease.first_token(0.1)
    for _ in range(10):
        door.enter(20, 1.0, name="many", rank=1, choices=2_000)
    victim = door.enter(500, 1.1, name="victim", rank=0)
    door.wake(1.1)
    assert victim in door.leases


def answered(door: Door, name: str, count: int, tokens: int) -> None:
    """A flow gets so many answers of this length."""
    for _ in range(count):
        door.finish(door.enter(50, 0.0, name=name, max_tokens=tokens), 0.0, tokens)


@pytest.mark.parametrize("before", [0, 66])
def test_answers_that_become_longer_than_ever_before_leave_the_cache_to_others(
    before: int,
) -> None:
    """Nobody knows the client, or its answers were short until now. All of these fill the cache."""
    door = Door("a", "b", kv_tokens=40_000)
    answered(door, "liar", before, 4)
    liar = [
        door.enter(50, 1.0, name="liar", choices=4, max_tokens=1_000, output_tokens=10.0)
        for _ in range(60)
    ]
    for step in range(1, 400):
        door.wake(1.0 + 0.01 * step)
        for ticket in liar:
            if ticket in door.leases:
                door.first(ticket, 1.0 + 0.01 * step)
    sent = [ticket for ticket in liar if ticket in door.leases]
    assert 8 <= len(sent) <= 18
    for ticket in sent:  # each of its choices has a third of its length
        for _ in range(333):
            door.leases[ticket].tokens(4)
    victim = door.enter(200, 6.0, name="victim", max_tokens=32)
    assert victim in door.leases


@pytest.mark.parametrize(
    "many", [{"choices": 128, "max_tokens": 1_000}, {"prompts": 1_000, "max_tokens": 2}]
)
def test_a_request_that_fills_an_engine_has_one_for_itself(many: dict[str, Any]) -> None:
    door = Door("a", "b", kv_tokens=40_000)
    giants = [door.enter(50, 0.0, name="giants", output_tokens=10.0, **many) for _ in range(4)]
    (first,) = [ticket for ticket in giants if ticket in door.leases]
    host = door.leases[first].backend
    for index in range(int(many.get("choices", 1) * many.get("prompts", 1))):
        door.leases[first].first_token(0.1, index)
    for number in range(20):
        victim = door.enter(200, 1.0 + number, name="victim", max_tokens=32)
        door.wake(1.0 + number)
        assert door.leases[victim].backend is not host
        door.finish(victim, 1.5 + number, 10)
    assert sum([ticket in door.leases for ticket in giants]) == 1
    door.leases[first].end(30.0)
    assert len(door.wake(30.1)) == 1  # the next one


def test_a_single_backend_serves_both() -> None:
    door = Door("a", kv_tokens=40_000)
    giant = door.enter(50, 0.0, name="giants", choices=128, max_tokens=1_000, output_tokens=10.0)
    for index in range(128):
        door.leases[giant].first_token(0.1, index)
    assert door.enter(200, 1.0, name="victim", max_tokens=32) in door.leases


def crowded(flows: int, each: int) -> tuple[Door, Ticket]:
    """The cache is nearly full, and requests wait that will not fit for long. Then a victim."""
    door = Door("a", kv_tokens=40_000)
    door.first(door.enter(32_000, 0.0, name="resident", output_tokens=4_000.0), 0.0)
    for number in range(flows * each):
        assert door.enter(9_000, 0.1, name=f"flow {number % flows}", max_tokens=1).waits
    return door, door.enter(500, 0.2, name="victim", max_tokens=16)


@pytest.mark.parametrize(("flows", "each"), [(1, 60), (2, 30), (5, 30), (90, 2)])
def test_who_fits_is_found_behind_any_number_that_do_not(flows: int, each: int) -> None:
    """Its counter is above theirs, so it is looked at after all of them."""
    door, _ = crowded(flows, each)
    for number in range(flows):
        door.queue.flow(f"flow {number}").served -= 1e6
    later = door.enter(500, 0.3, name="victim", max_tokens=16)
    assert later.waits
    for step in range(10):
        door.wake(0.3 + 0.05 * step)
    assert later in door.leases


@pytest.mark.parametrize("flows", [12, 13, 100, 256])
def test_an_engine_that_is_empty_again_is_used_at_once(flows: int) -> None:
    door = Door("a", kv_tokens=40_000)
    resident = door.enter(32_000, 0.0, name="resident", output_tokens=4_000.0)
    door.first(resident, 0.0)
    for number in range(flows):
        assert door.enter(9_000, 0.1, name=f"flow {number}", max_tokens=1).waits
    for step in range(40):
        assert not door.wake(0.2 + 0.01 * step)
    door.leases[resident].end(1.0)
    assert door.wake(1.0)


def test_what_waits_and_finds_no_room_wakes_nobody_for_ever() -> None:
    door, _ = crowded(90, 2)
    for step in range(20):
        door.wake(0.3 + 0.01 * step)
    before = door.changes
    for step in range(10):
        door.wake(0.5 + 0.001 * step)
    assert door.changes == before


def test_a_giant_closes_no_backend_while_no_other_can_serve() -> None:
    door = Door("a", "b", kv_tokens=40_000)
    door.backends[1].state = State.EJECTED
    giant = door.enter(50, 0.0, name="giants", choices=128, max_tokens=1_000, output_tokens=10.0)
    for index in range(128):
        door.leases[giant].first_token(0.1, index)
    assert door.enter(200, 1.0, name="victim", max_tokens=32) in door.leases


def test_a_lower_class_leaves_its_reserve_in_the_cache_to_higher_ones() -> None:
    door = Door("a", kv_tokens=40_000, **HALF)
    batch = [
        door.enter(2_000, 0.0, name="batch", rank=1, max_tokens=10, reserve=0.1) for _ in range(30)
    ]
    for step in range(1, 100):
        door.wake(0.1 * step)
        for ticket in batch:
            if ticket in door.leases:
                door.first(ticket, 0.1 * step)
    assert sum([ticket in door.leases for ticket in batch]) == 17  # 36,000 / 2,010
    assert door.enter(3_000, 11.0, name="victim", max_tokens=10) in door.leases


def test_who_waits_for_one_backend_alone_makes_nobody_look_late() -> None:
    """Its wait says nothing of the pool: neither of its pace, nor of how long its queue stands."""
    door = Door("a", "b", prices={"a": 1.0, "b": 2.0})
    door.backends[0].models = {"rare": b"", "m": b""}
    door.backends[1].models = {"m": b""}
    door.enter(FILLS, model="rare")
    assert door.enter(FILLS, 0.1, model="rare", deadline_s=1e9).waits
    for step in range(600):
        door.wake(0.1 + 0.1 * step)
    door.policy.prices = {"a": 2.0, "b": 1.0}
    door.enter(FILLS, 60.0, model="m")
    door.wake(60.0)
    victim = door.enter(FILLS, 60.1, model="m", name="victim", rank=0, deadline_s=3.0)
    assert victim.waits
    assert victim.predicted_s < 1.0


def test_a_plain_answer_that_is_given_up_is_charged_for_the_time_that_it_had() -> None:
    door = Door("a")
    plain = door.enter(100, 0.0, name="plain", stream=False)
    flow = plain.flow
    before = flow.served
    door.leases[plain].end(20.0)
    seconds = door.backends[0].decode_speed.itl_s(0.0)
    assert flow.served - before >= 2.0 * 20.0 / seconds - 1_000


def test_a_class_has_its_share_though_its_first_request_finds_no_room() -> None:
    rules: dict[str, Any] = {"shares": (0.0, 0.1), "classes": ("high", "low")}
    door = Door("a", kv_tokens=300_000, **rules)
    for _ in range(40):
        lease = door.leases[door.enter(1_900, name="others", output_tokens=2_000.0)]
        lease.first_token(0.1)
    door.enter(FILLS, 0.2, name="others", output_tokens=1.0, max_tokens=1)
    blocked = door.enter(240_000, 0.2, name="blocked", rank=1)
    victim = door.enter(100, 0.3, name="victim", rank=1, output_tokens=1.0, max_tokens=1)
    high = [door.enter(FILLS, 0.3, name="high", output_tokens=1.0, max_tokens=1) for _ in range(40)]
    now_s = 0.4
    sent: list[Ticket] = []
    while len(sent) < 20:
        door.open_up(now_s)
        sent += door.wake(now_s)
        now_s += 0.1
    assert victim in sent
    assert blocked.waits
    assert any(ticket.waits for ticket in high)


def test_a_lower_class_that_always_waits_shortens_no_queue_of_a_higher_one() -> None:
    accepted = []
    for stands in (False, True):
        door, now_s = full("a", shares=(0.0, 0.0, 0.0)), 0.1
        for _ in range(150):
            if stands:
                door.enter(FILLS, now_s, name="low", rank=2)
            now_s += 0.2
            if any(lease.prefilling and not lease.ended for lease in door.leases.values()):
                door.open_up(now_s)
            door.wake(now_s)
        door.enter(FILLS, now_s, name="middle", rank=1, deadline_s=30.0)
        number = 0
        with suppress(Refused):
            while number < 200:
                door.enter(FILLS, now_s, name="middle", rank=1, deadline_s=30.0)
                number += 1
        accepted.append(number)
    assert accepted[1] > 0.7 * accepted[0]


def test_a_reload_with_fewer_classes_finds_each_its_own_by_name() -> None:
    """Also for those that an engine works on: their first tokens and their ends still count."""
    classes = ("high", "middle", "low")
    door = Door("a", shares=(0.0, 0.0, 0.1), classes=classes)
    under_way = door.enter(FILLS, rank=2)
    waits = [door.enter(FILLS, 0.1, rank=rank) for rank in (0, 1, 2)]
    fewer = Rules(enabled=True, shares=(0.0, 0.1), classes=("middle", "low"))
    door.admission.follow(fewer)
    assert [ticket.rank for ticket in waits] == [1, 0, 1]
    assert under_way.rank == 1
    now_s = 0.2
    for _ in range(4):
        door.open_up(now_s)
        door.wake(now_s)
        now_s += 0.1
    for lease in list(door.leases.values()):
        lease.end(now_s)
    assert door.backends[0].own.idle
    assert len(door.leases) == 4


def test_who_waits_for_a_backend_that_is_gone_is_told_and_others_wait_on() -> None:
    door = full("a", "b")
    door.backends[0].models, door.backends[1].models = {"rare": b""}, {"m": b""}
    gone = [door.enter(FILLS, 0.1, model="rare") for _ in range(3)]
    stays = door.enter(FILLS, 0.1, model=None)
    door.backends[0].state = State.EJECTED
    door.wake(0.3)
    assert [each for each, _ in door.told] == gone
    assert all(isinstance(outcome, NoBackend) for _, outcome in door.told)
    assert stays.waits


def test_a_backend_that_reports_a_tiny_cache_gets_what_others_have_no_room_for() -> None:
    door = Door("honest", "lies", prices={"honest": 2.0, "lies": 1.0})
    door.backends[1].report = None
    door.admission.follow(door.admission.rules)
    for _ in range(5):
        ticket = door.enter(500, 0.1)
        assert isinstance(door.leases.get(ticket), Lease)
        door.first(ticket, 0.1)


def test_what_is_never_held_back_keeps_nobody_else_waiting() -> None:
    door = Door("a")
    for _ in range(5):
        door.enter(FILLS, name="embeds", generates=False)
    assert door.enter(100, 0.1, name="chats") in door.leases


def test_a_process_that_slept_refuses_nobody_for_that() -> None:
    door = full("a")
    ticket = door.enter(FILLS, 0.1, deadline_s=10.0)
    door.admission.slept(100.0)
    ticket.since_s += 100.0  # as the request's own clock does
    door.wake(100.2)
    assert ticket.waits
    assert not door.told


def test_a_tenant_whose_answers_were_short_leaves_room_in_the_cache_for_long_ones() -> None:
    """Its prompts alone would fill it. What it may be answered is counted beside them."""
    door = Door("a", kv_tokens=40_000)
    for name in ("attacker", "victim"):
        for _ in range(20):
            door.finish(door.enter(50, 0.0, name=name), 0.0, 5)
    for number in range(20):
        ticket = door.enter(3_000, 1.0 + number, name="attacker", max_tokens=1_000)
        if ticket in door.leases:
            door.first(ticket, 1.0 + number)
    attacker = [lease for lease in door.leases.values() if not lease.ended]
    assert 6 <= len(attacker) <= 10
    for lease in attacker:
        lease.tokens(700)
    for number in range(4):  # several at once
        ticket = door.enter(100, 30.0 + number, name="victim", max_tokens=200)
        assert ticket in door.leases or door.wake(30.0 + number) == [ticket]
        door.first(ticket, 30.0 + number)
