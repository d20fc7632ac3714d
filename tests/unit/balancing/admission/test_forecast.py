"""What a dry run says of a request: at once, for what it would wait, or why it is refused."""

from typing import Any

import pytest

from penstock.balancing.admission.forecast import Ahead, Fate
from penstock.balancing.admission.lack import Lack
from penstock.balancing.admission.queue import YIELD_S
from penstock.balancing.admission.refusal import SHARE, STANDING_S, STANDING_SHARE
from penstock.balancing.admission.ticket import Refused
from penstock.balancing.backend import State
from penstock.balancing.engine_report import EngineReport
from penstock.balancing.gate import NoBackend, OwnerAway
from tests.unit.balancing.admission.lines import FILLS, Door, asked, full, lack

TWO: dict[str, Any] = {"shares": (0.0, 0.0), "classes": ("high", "low")}

# At once -----------------------------------------------------------------------------------


def test_where_there_is_room_it_is_sent_at_once() -> None:
    found = asked(Door("a"), FILLS)
    assert (found.fate, found.lack, found.ahead) == (Fate.AT_ONCE, None, [])
    assert found.backend is not None
    assert found.backend.name == "a"


def test_what_makes_no_answer_is_sent_at_once() -> None:
    assert asked(full("a"), FILLS).fate is Fate.WAIT
    assert asked(full("a"), FILLS, generates=False).fate is Fate.AT_ONCE


def test_without_admission_all_is_sent_at_once() -> None:
    door = Door("a", enabled=False)
    for _ in range(5):
        door.enter(FILLS)
    assert asked(door, FILLS).fate is Fate.AT_ONCE


def test_a_place_that_costs_little_more_is_taken_at_once() -> None:
    door = Door("a", "b", prices={"a": 1.0, "b": 1.05})
    door.enter(FILLS)
    found = asked(door, FILLS)
    assert found.backend is door.backends[1]
    assert found.fate is Fate.AT_ONCE
    real = door.enter(FILLS)
    door.wake(0.0)
    assert door.leases[real].backend is door.backends[1]


# For what it waits -------------------------------------------------------------------------


def test_for_prompts_to_prefill() -> None:
    door = full("a")
    assert lack(door, 100) is Lack.PROMPTS
    door.open_up(0.1)
    assert lack(door, 100, 0.1) is None


def test_for_the_cache() -> None:
    door = Door("a", kv_tokens=10_000)
    door.first(door.enter(8_000, name="other"), 0.1)
    assert lack(door, 1_000, 0.2) is None
    assert lack(door, 4_000, 0.2) is Lack.KV_CACHE


def test_for_the_end_of_its_own_answers() -> None:
    """They could become long. Another tenant still has room."""
    door = Door("a", kv_tokens=10_000)
    while lack(door, 100, 0.2, name="mine") is None:
        door.first(door.enter(100, 0.2, name="mine"), 0.2)
    assert lack(door, 100, 0.2, name="mine") is Lack.ANSWERS
    assert lack(door, 100, 0.2, name="other") is None


def test_for_a_place_in_the_batch() -> None:
    door = Door("a")
    door.first(door.enter(10), 0.0)
    door.enter(10)  # is stuck
    door.enter(FILLS)
    door.enter(FILLS)  # waits
    door.backends[0].take(EngineReport(4.0, running=1, waiting=2, kv_usage=0.1))
    door.wake(5.0)
    door.open_up(5.1)
    door.open_up(5.1)
    assert lack(door, 10, 5.1, name="other") is Lack.SEQUENCES


GIANT: dict[str, Any] = {"choices": 300, "max_tokens": 1_000}


def with_giant() -> Door:
    """It is at a, the cheapest place, and b has a long prompt."""
    door = Door("a", "b", prices={"a": 1.0, "b": 2.0}, kv_tokens=400_000)
    door.enter(50, **GIANT)
    for index in range(150):
        next(iter(door.leases.values())).first_token(0.1, index)
    return door


def test_for_a_backend_that_is_left_to_a_giant() -> None:
    door = with_giant()
    assert asked(door, 100, 0.2).backend is door.backends[1]  # any other place is better
    while asked(door, FILLS, 0.2, name="other").fate is Fate.AT_ONCE:
        door.enter(FILLS, 0.2, name="other")
        door.wake(0.2)
    assert lack(door, 100, 0.2, name="other") is Lack.GIANT


def test_a_second_giant_waits_for_the_first() -> None:
    door = with_giant()
    door.policy.prices = {"a": 2.0, "b": 1.0}
    assert lack(door, 50, 0.2, **GIANT) is Lack.GIANTS


def test_for_a_higher_class_that_must_not_be_passed() -> None:
    door = Door("a", kv_tokens=10_000, **TWO)
    door.first(door.enter(8_000, name="other"), 0.1)
    door.enter(4_000, 0.2, name="high")
    assert lack(door, 100, 0.2 + YIELD_S / 2, rank=1, name="low") is Lack.TURN
    assert lack(door, 100, 0.2 + 2 * YIELD_S, rank=1, name="low") is Lack.CLASS
    assert lack(door, 4_000, 0.2 + 2 * YIELD_S, rank=1, name="low") is Lack.KV_CACHE


def test_for_others_that_are_next() -> None:
    door = full("a")
    door.enter(100, 0.1, name="mine")
    door.open_up(0.2)
    assert lack(door, 100, 0.2, name="mine") is Lack.TURN
    assert lack(door, 100, 0.2, name="before") is Lack.TURN  # it was given more
    assert lack(door, 100, 0.2, name="new") is None


def test_one_that_waits_tells_the_same() -> None:
    door = full("a")
    ticket = door.enter(100, 0.1)
    assert door.admission.lack(ticket, 0.1) == (door.backends[0], Lack.PROMPTS)
    door.open_up(0.2)
    assert door.admission.lack(ticket, 0.2) == (door.backends[0], Lack.TURN)
    door.backends[0].state = State.EJECTED
    assert door.admission.lack(ticket, 0.2) == (None, Lack.BACKEND)
    assert ticket.waits


def test_where_nobody_can_serve_there_is_nothing_to_wait_for() -> None:
    door = full("a")
    door.backends[0].state = State.EJECTED
    with pytest.raises(NoBackend):
        asked(door, 100)


def test_what_refers_to_a_stored_response_waits_for_the_backend_that_holds_it() -> None:
    door = full("a", "b")
    door.gate.owners.put("resp_1", "b", 0.0, "t")
    fields: dict[str, Any] = {"response_id": "resp_1", "tenant": "t"}
    found = asked(door, 100, 0.1, **fields)
    assert (found.backend, found.lack) == (door.backends[1], Lack.PROMPTS)
    door.backends[1].state = State.EJECTED
    with pytest.raises(OwnerAway):
        asked(door, 100, 0.1, **fields)
    ask = door.ticket(100, **fields).ask
    assert door.gate.explain(ask, 0.1).chosen == []


# Behind what, and until when ---------------------------------------------------------------


def test_what_goes_before_it_is_counted_by_class() -> None:
    door = full("a", **TWO)
    for name in ("x", "x", "y"):
        door.enter(1_000, 0.1, name=name)
    for name in ("mine", "mine", "other", "before"):
        door.enter(500, 0.1, rank=1, name=name)
    assert asked(door, 100, 0.1, name="new").ahead == [Ahead(0, 2, 200, 2)]  # as much of each
    found = asked(door, 2_000, 0.1, rank=1, name="mine")
    high, low = found.ahead
    assert high == Ahead(0, 3, 3_000, 2)
    assert low == Ahead(1, 3, 1_500, 2)  # not of the one that was given more
    ahead = door.queue.ahead_tokens(door.queue.flow("mine"), 1, 2_000)
    assert ahead == high.tokens + low.tokens


def test_of_a_flow_that_is_passed_midway_a_part_goes_before_it() -> None:
    door = full("a")
    for _ in range(10):
        door.enter(1_000, 0.1, name="many")
    (part,) = asked(door, 2_500, 0.1, name="new").ahead
    assert part == Ahead(0, 3, 2_500, 1)


def test_the_time_is_the_one_that_it_would_be_told() -> None:
    door = full("a")
    for number in range(5):
        found = asked(door, FILLS, 0.01, deadline_s=100.0, name="mine")
        ticket = door.enter(FILLS, 0.01, deadline_s=100.0, name="mine")
        assert found.predicted_s == ticket.predicted_s > 0.2 * number
        assert found.allowed_s == SHARE * 100.0


def test_it_is_refused_as_it_would_be() -> None:
    door = full("a")
    while asked(door, FILLS, 0.01, deadline_s=5.0).fate is Fate.WAIT:
        door.enter(FILLS, 0.01, deadline_s=5.0)
    found = asked(door, FILLS, 0.01, deadline_s=5.0)
    assert (found.fate, found.lack) == (Fate.REFUSE, Lack.PROMPTS)
    assert found.refused is not None
    with pytest.raises(Refused) as raised:
        door.enter(FILLS, 0.01, deadline_s=5.0)
    assert found.predicted_s == found.refused.predicted_s == raised.value.predicted_s
    least_s = found.refused.retry_after_s
    assert least_s <= raised.value.retry_after_s <= 2.0 * least_s
    assert sum([each.requests for each in found.ahead]) == door.admission.waiting


def test_a_queue_that_stands_allows_less_and_an_empty_one_does_not_stand() -> None:
    door = full("a", **TWO)
    assert asked(door, 100, 1_000.0, rank=1, deadline_s=10.0).allowed_s == SHARE * 10.0
    door.enter(100, 1_000.0, rank=1)
    door.enter(100, 1_001.0 + STANDING_S, rank=1)
    found = asked(door, 100, 1_001.0 + STANDING_S, rank=1, deadline_s=10.0)
    assert found.allowed_s == STANDING_SHARE * 10.0
