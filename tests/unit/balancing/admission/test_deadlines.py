"""Who has waited for too long, wherever it stands in its flow."""

import pytest

from penstock.balancing.admission.deadlines import AGAIN_S, LOOKS_MAX, SPARE, Deadlines
from penstock.balancing.admission.queue import YIELD_S
from penstock.balancing.admission.refusal import LATE
from penstock.balancing.admission.ticket import Refused, Ticket
from tests.unit.balancing.admission.lines import Door, full


def ticket(deadline_s: float = 10.0, *, impatient: bool = True) -> Ticket:
    return Door("a").ticket(100, 0.0, deadline_s=deadline_s, impatient=impatient)


def test_the_first_whose_time_is_over_is_told_first() -> None:
    deadlines = Deadlines()
    late, early, endless = ticket(), ticket(deadline_s=5.0), ticket(deadline_s=float("inf"))
    for each in (late, early, endless):
        deadlines.add(each, 0.0)
    assert deadlines.over(9, 5.0 * LATE) == []
    assert deadlines.over(9, 5.0) == [early]
    assert deadlines.over(9, 100.0) == [late]


def test_what_has_left_is_not_told() -> None:
    deadlines = Deadlines()
    gone, stays = ticket(), ticket()
    for each in (gone, stays):
        deadlines.add(each, 0.0)
    deadlines.remove(gone)
    assert deadlines.over(9, 10.0) == [stays]


def test_the_time_of_one_that_is_held_stands_still() -> None:
    deadlines = Deadlines()
    held = ticket(impatient=False)
    deadlines.add(held, 0.0)
    held.held_since_s = 5.0
    assert [deadlines.over(9, at_s) for at_s in (10.0, 20.0, 50.0)] == [[], [], []]
    held.release(50.0)
    assert deadlines.over(9, 53.9) == []
    assert deadlines.over(9, 54.1 + AGAIN_S) == [held]


def test_those_that_have_left_take_no_memory() -> None:
    deadlines = Deadlines()
    for _ in range(10 * SPARE):
        each = ticket()
        deadlines.add(each, 0.0)
        deadlines.remove(each)
    assert len(deadlines._heap) <= SPARE + 1


def test_a_look_at_many_goes_on_with_the_next_wake() -> None:
    deadlines = Deadlines()
    for _ in range(LOOKS_MAX):
        each = ticket(deadline_s=5.0, impatient=False)
        deadlines.add(each, 0.0)
        each.held_since_s = 1.0
    last = ticket()
    deadlines.add(last, 0.0)
    assert (deadlines.over(9, 20.0), deadlines.unseen) == ([], True)
    assert (deadlines.over(9, 20.0), deadlines.unseen) == ([last], False)


def test_the_next_wake_follows_at_once_if_more_may_be_over() -> None:
    door = full("a")
    for _ in range(2 * LOOKS_MAX):
        door.admission.leave(door.enter(100, 0.0, name="x", deadline_s=1_000.0), 0.0)
    for _ in range(LOOKS_MAX + SPARE):
        door.enter(100, 0.0, name="y", deadline_s=1_000.0)
    wakes, changes = 0, -1
    while changes != door.changes:
        changes = door.changes
        door.wake(950.0)
        wakes += 1
    assert wakes > 2
    assert not door.admission.waiting


@pytest.mark.parametrize("retries_at_s", [(), (20.0,), (20.0, 45.0, 70.0)])
def test_one_behind_others_that_were_failed_is_told_in_time(
    retries_at_s: tuple[float, ...],
) -> None:
    door = full("a", "b")
    waits = door.enter(100, 0.0, deadline_s=30.0)
    told_s = None
    for second in range(100):
        now_s = float(second)
        if now_s in retries_at_s:
            failed = door.ticket(100, now_s, deadline_s=30.0)
            failed.tried = (door.backends[0],)
            door.come(failed, now_s)
        door.wake(now_s)
        if told_s is None and [outcome for each, outcome in door.told if each is waits]:
            told_s = now_s
    assert told_s == 28.0
    assert {type(outcome) for _, outcome in door.told} == {Refused}


def test_a_short_time_is_over_behind_a_longer_one() -> None:
    door = full("a")
    door.enter(100, 0.0, deadline_s=60.0)
    short = door.enter(100, 0.0, deadline_s=10.0)
    door.wake(9.5)
    assert [each for each, _ in door.told] == [short]


def test_a_lower_class_yields_to_one_behind_those_that_were_failed() -> None:
    """They came a moment ago, and it has waited for longer than others may pass it."""
    door = Door("a", "b", kv_tokens=40_000, shares=(0.0, 0.0), classes=("high", "low"))
    for name in ("x", "y"):
        door.first(door.enter(20_000, 0.0, max_tokens=19_000, name=name), 0.1)
    door.enter(25_000, 0.2, name="z", rank=0, max_tokens=100)
    failed = door.ticket(25_000, 0.9, name="z", rank=0, max_tokens=100)
    failed.tried = frozenset(door.backends[:1])
    door.come(failed, 0.9)
    low = door.enter(400, 0.9, name="v", rank=1, max_tokens=5)
    assert low not in door.wake(0.95)
    assert 0.95 - failed.since_s < YIELD_S
