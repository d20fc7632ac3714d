"""Who is refused: on arrival by the predicted time, and later when it has become too late."""

from math import inf

import pytest

from penstock.balancing.admission.refusal import (
    HINT_MAX_S,
    HINT_MIN_S,
    LATE,
    SHARE,
    STANDING_S,
    SURELY_LATE,
)
from penstock.balancing.admission.ticket import Refused, Ticket
from penstock.balancing.backend import Backend
from tests.unit.balancing.admission.lines import FILLS, Door, full

# At the speed that is assumed at first, such a prompt takes this time.
FILLS_S = FILLS / 15_000


def waiting_until_refused(door: Door, deadline_s: float, now_s: float = 0.01) -> int:
    """How many of one flow wait before one is refused."""
    for number in range(1_000):
        try:
            assert door.enter(FILLS, now_s, name="many", deadline_s=deadline_s).waits
        except Refused:
            return number
    raise AssertionError


@pytest.mark.parametrize("deadline_s", [2.0, 5.0, 20.0])
def test_one_is_refused_if_its_first_token_is_predicted_too_late(deadline_s: float) -> None:
    door = full("a")
    waiting = waiting_until_refused(door, deadline_s)
    assert waiting * FILLS_S == pytest.approx(SHARE * deadline_s, abs=2 * FILLS_S)
    assert door.admission.waiting == waiting
    assert door.queue.waiting == waiting
    assert door.told == []


def test_a_prompt_that_takes_longer_than_its_class_may_wait_is_served_all_the_same() -> None:
    """Unless its client leaves by then."""
    door = full("a")
    with pytest.raises(Refused):
        door.enter(2_000_000, 0.01, name="long", deadline_s=30.0)
    long = door.enter(2_000_000, 0.01, name="long", deadline_s=30.0, impatient=False)
    assert long.predicted_s > 60.0
    door.open_up(0.1)
    assert door.wake(0.1) == [long]
    with pytest.raises(Refused):  # behind that one it would wait too long
        door.enter(FILLS, 0.2, name="other", deadline_s=30.0, impatient=False)


def test_who_waits_as_long_as_it_takes_is_not_refused() -> None:
    door = full("a")
    for _ in range(200):
        assert door.enter(FILLS, deadline_s=inf).waits


def test_behind_a_flood_another_flow_is_not_refused() -> None:
    door = full("a")
    waiting_until_refused(door, 5.0)
    assert door.enter(FILLS, 0.02, name="other", deadline_s=5.0).waits


def test_behind_a_lower_class_a_higher_one_is_not_refused() -> None:
    door = full("a", shares=(0.0, 0.0))
    for _ in range(50):
        door.enter(FILLS, rank=1, name="low")
    assert door.enter(FILLS, 0.02, name="high", deadline_s=1.0).waits
    with pytest.raises(Refused):
        door.enter(FILLS, 0.02, rank=1, name="low", deadline_s=5.0)


def test_one_whose_own_prompt_takes_long_is_refused_only_if_it_is_surely_late() -> None:
    door = full("a")
    tokens = round(15_000 * 5.0 * (SURELY_LATE - 0.05) - FILLS)
    assert door.enter(tokens, deadline_s=5.0).waits  # its own prefill is most of the time
    door = full("a")
    with pytest.raises(Refused):
        door.enter(round(15_000 * 5.0 * SURELY_LATE), deadline_s=5.0)


def test_one_that_is_tried_again_is_predicted_to_go_first() -> None:
    door = full("a")
    waiting_until_refused(door, 5.0)
    again = door.ticket(FILLS, 0.0, name="many", deadline_s=5.0)
    again.tried = (Backend("gone", ""),)
    door.come(again, 0.02)
    assert again.waits


def test_the_hint_says_when_to_come_again_spread_and_within_what_clients_obey() -> None:
    hints = []
    for tokens in (20_000, 100_000, 1_000_000):
        for _ in range(30):
            with pytest.raises(Refused) as raised:
                full("a").enter(tokens, deadline_s=0.5)
            hints.append(raised.value.retry_after_s)
    assert all(HINT_MIN_S <= hint <= HINT_MAX_S for hint in hints)
    assert hints[-1] == HINT_MAX_S
    door = full("a")
    spread = set()
    for _ in range(30):
        with pytest.raises(Refused) as raised:
            door.enter(60_000, deadline_s=1.0)
        spread.add(round(raised.value.retry_after_s, 2))
    assert len(spread) > 20
    assert max(spread) <= 2.1 * min(spread)


# Later -------------------------------------------------------------------------------------


def wait_states(*tickets: Ticket) -> list[bool]:
    return [ticket.waits for ticket in tickets]


def told(door: Door) -> list[tuple[Ticket, type]]:
    return [(ticket, type(outcome)) for ticket, outcome in door.told]


def test_a_wake_takes_out_those_that_are_too_late() -> None:
    door = full("a")
    late, patient = door.enter(100, deadline_s=1.0), door.enter(100, deadline_s=10.0)
    door.wake(LATE - 0.01)
    assert wait_states(late, patient) == [True, True]
    assert door.wake(LATE + 0.1) == []
    assert told(door) == [(late, Refused)]
    assert wait_states(late, patient) == [False, True]
    assert door.admission.waiting == 1
    outcome = door.told[0][1]
    assert isinstance(outcome, Refused)
    assert HINT_MIN_S <= outcome.retry_after_s <= HINT_MAX_S


def test_one_that_would_be_late_where_there_is_room_is_refused_and_not_sent() -> None:
    door = full("a")
    late = door.enter(FILLS, deadline_s=1.0)
    door.open_up(0.8)
    assert door.wake(0.8) == []  # it takes 0.2 s more
    assert told(door) == [(late, Refused)]
    assert door.backends[0].own.requests == 1
    in_time = door.enter(FILLS, 0.8, deadline_s=1.0)
    assert in_time in door.leases


# A queue that stands -----------------------------------------------------------------------


def standing(until_s: float, each_s: float = FILLS_S) -> Door:
    """A prompt is served in this time, and nine always wait."""
    door = full("a", shares=(0.0, 0.0))
    now_s = 0.0
    while now_s < until_s:
        while door.admission.waiting < 9:
            door.enter(FILLS, now_s, rank=1)
        now_s += each_s
        door.open_up(now_s)
        door.wake(now_s)
    return door


@pytest.mark.parametrize("each_s", [FILLS_S, 3 * FILLS_S])
def test_what_is_predicted_comes_true_once_some_have_waited(each_s: float) -> None:
    door = standing(30.0, each_s)
    now_s = 30.0
    ticket = door.enter(FILLS, now_s, rank=1)
    while ticket not in door.leases:
        now_s += each_s
        door.open_up(now_s)
        door.wake(now_s)
    now_s += each_s
    door.first(ticket, now_s)
    assert ticket.predicted_s == pytest.approx(now_s - 30.0, 0.15)


def test_when_requests_have_waited_long_without_a_pause_the_queue_becomes_shorter() -> None:
    door = standing(STANDING_S - 2.0)
    assert door.enter(FILLS, STANDING_S - 2.0, rank=1, deadline_s=5.0).waits
    door = standing(STANDING_S + 2.0)
    with pytest.raises(Refused):
        door.enter(FILLS, STANDING_S + 2.0, rank=1, deadline_s=5.0)


def test_but_not_for_the_highest_class() -> None:
    door = standing(STANDING_S + 2.0)
    for number in range(6):
        assert door.enter(FILLS, STANDING_S + 2.0, deadline_s=5.0).waits, number
