"""Who is sent at once, who waits, and who is sent when there is room."""

import pytest

from penstock.balancing.admission.admission import TICK_S
from penstock.balancing.admission.room import WINDOW_WORK_MIN
from penstock.balancing.admission.scan import Outcome
from penstock.balancing.backend import Backend
from penstock.balancing.lease import Reason
from tests.unit.balancing.admission.lines import FILLS, Door, full


def test_where_nothing_waits_and_there_is_room_a_request_is_sent_at_once() -> None:
    door = Door("a", "b")
    tickets = [door.enter(FILLS), door.enter(FILLS)]
    assert {door.leases[ticket].backend for ticket in tickets} == set(door.backends)
    assert door.admission.waiting == 0
    assert not any(ticket.waits for ticket in tickets)


@pytest.mark.parametrize("how", ["first token", "end", "fail", "complete"])
def test_one_that_waits_is_sent_in_the_wake_after_there_is_room(how: str) -> None:
    door = full("a")
    before = next(iter(door.leases.values()))
    ticket = door.enter(100, 0.01)
    assert ticket.waits
    assert door.wake(0.02) == []
    changes = door.changes
    if how == "first token":
        before.first_token(0.03)
    elif how == "end":
        before.end(0.03)
    elif how == "fail":
        before.fail(0.03)
    else:
        before.first_token(0.03)
        before.complete(0.03)
    assert door.changes > changes
    assert door.wake(0.03) == [ticket]
    assert door.admission.waiting == 0
    assert door.told == [(ticket, door.leases[ticket])]


def test_a_plain_answer_makes_room_by_the_clock_alone() -> None:
    door = Door("a")
    door.enter(FILLS, stream=False)
    ticket = door.enter(100, 0.0)
    now_s = 0.0
    while not door.wake(now_s):
        now_s += TICK_S
        assert now_s < 0.4
    assert now_s > 0.15  # the time that such a prompt takes at the assumed speed
    assert ticket in door.leases


def test_a_wake_tells_nobody_itself() -> None:
    door = full("a")
    ticket = door.enter(100)
    door.open_up(0.1)
    outcomes: list[Outcome] = []
    door.admission.wake(0.1, outcomes)
    assert [each for each, _ in outcomes] == [ticket]
    assert door.told == []


def test_what_waits_is_sent_in_the_order_of_arrival() -> None:
    door = full("a")
    tickets = [door.enter(FILLS, 0.01 * number) for number in range(5)]
    sent = []
    for number in range(5):
        door.open_up(0.2 + 0.2 * number)
        sent += door.wake(0.2 + 0.2 * number)
    assert sent == tickets


def test_a_new_request_does_not_pass_an_older_one_of_its_flow() -> None:
    """There is room, and the wake for it is still to come."""
    door = full("a")
    older = door.enter(FILLS, 0.01, name="mine")
    door.open_up(0.1)
    newer = door.enter(FILLS, 0.1, name="mine")
    assert newer.waits
    assert door.wake(0.1) == [older]


def test_a_new_request_passes_those_of_flows_that_were_given_more() -> None:
    door = full("a")
    for _ in range(3):
        door.enter(FILLS, 0.01, name="before")
    door.open_up(0.1)
    assert door.enter(FILLS, 0.1, name="new") in door.leases


def test_who_passes_at_once_saves_nothing_up_either() -> None:
    """A flow that was away passes those that wait. It starts beside them, as one that waits."""
    door = full("a")
    steady = [door.enter(FILLS, 0.01, name="before") for _ in range(40)]
    now_s = 0.1
    for _ in range(20):
        door.open_up(now_s)
        door.wake(now_s)
        now_s += 0.1
    passed = 0
    for _ in range(10):
        door.open_up(now_s)
        passed += door.enter(FILLS, now_s, name="away") in door.leases
        door.wake(now_s)
        now_s += 0.1
    assert passed <= 6
    assert any(ticket.waits for ticket in steady)


def test_one_that_is_tried_again_goes_first_in_its_flow() -> None:
    door = full("a")
    door.enter(FILLS, 0.01)
    again = door.ticket(FILLS, 0.0)
    again.retry, again.tried = True, (Backend("gone", ""),)
    door.come(again, 0.02)
    assert again.waits
    door.open_up(0.2)
    assert door.wake(0.2) == [again]
    assert door.backends[0].own.retries == 1


def test_who_has_failed_it_does_not_get_it_again() -> None:
    door = full("a", "b")
    ticket = door.ticket(100)
    ticket.tried = (door.backends[0],)
    door.come(ticket, 0.0)
    door.open_up(0.1, 0)
    assert door.wake(0.1) == []
    door.open_up(0.2, 1)
    assert door.wake(0.2) == [ticket]
    assert door.leases[ticket].backend is door.backends[1]


def test_one_whose_client_leaves_gives_up_its_place() -> None:
    door = full("a")
    leaving, other = door.enter(FILLS, 0.01), door.enter(FILLS, 0.02)
    changes = door.changes
    door.admission.leave(leaving, 0.05)
    assert door.changes == changes + 1
    door.admission.leave(leaving, 0.06)  # and again: nothing
    assert door.admission.waiting == 1
    door.open_up(0.2)
    assert door.wake(0.2) == [other]
    assert [ticket for ticket, _ in door.told] == [other]


def test_what_makes_no_answer_waits_for_no_room_in_a_cache() -> None:
    door = full("a")
    assert door.enter(FILLS).waits
    for fields in ({"generates": False, "stream": False}, {"engine": False}):
        for _ in range(5):
            assert door.enter(200, **fields) in door.leases


def test_what_makes_no_answer_waits_behind_a_window_of_its_kind_in_turn() -> None:
    door = Door("a")
    flood = [door.enter(900, name="flood", generates=False) for _ in range(40)]
    begun = [ticket for ticket in flood if ticket in door.leases]
    assert 2 * 900 < WINDOW_WORK_MIN < door.backends[0].queued_work
    assert len(begun) == 3
    victim = door.enter(20, 0.1, name="victim", generates=False)
    assert victim.waits
    door.finish(begun[0], 0.2)
    assert door.wake(0.2)[0] is victim
    assert door.enter(FILLS, 0.3, engine=False) in door.leases


def test_what_makes_no_answer_is_charged_for_its_prompt_alone() -> None:
    door = Door("a")
    door.finish(door.enter(1_000), 0.1, tokens=300)
    embedding = door.enter(500, 1.0, generates=False, stream=False, output_tokens=0.0)
    before = embedding.flow.served
    door.enter(700, 1.0, generates=False, stream=False, output_tokens=0.0)
    assert embedding.flow.served == before + 700


def test_if_the_rules_hold_nothing_each_is_sent_at_once() -> None:
    door = Door("a", enabled=False)
    for _ in range(20):
        assert door.enter(FILLS) in door.leases
    assert door.wake(1.0) == []


# What refers to a stored response ----------------------------------------------------------


def test_one_that_is_bound_to_a_backend_waits_for_that_one() -> None:
    door = full("a", "b")
    door.gate.owners.put("resp_1", "b", 0.0, "t")
    ticket = door.enter(100, 0.01, response_id="resp_1", tenant="t")
    assert ticket.waits
    door.open_up(0.1, 0)
    assert door.wake(0.1) == []
    door.open_up(0.3, 1)
    assert door.wake(0.3) == [ticket]
    lease = door.leases[ticket]
    assert (lease.backend.name, lease.bound, lease.reason) == ("b", True, Reason.AFFINITY)
