"""Short prompts behind long ones of their own flow, for which there is no room."""

import pytest

from penstock.balancing.admission.queue import Queue
from penstock.balancing.admission.ticket import Ticket
from tests.unit.balancing.admission.lines import Door, waiting

LONG = 36_000


def behind(long: int, *names: str, used: int = 20_000) -> tuple[Door, list[Ticket]]:
    """A cache of 40,000 tokens, and so many long prompts that it has no room for."""
    door = Door("a", kv_tokens=40_000)
    door.first(door.enter(used, max_tokens=100), 0.1)
    return door, [
        door.enter(LONG, 0.2, name=name, max_tokens=100) for name in names for _ in range(long)
    ]


@pytest.mark.parametrize("names", [("x",), tuple("abcdefghijklmnop")])
def test_they_pass_them_however_many_there_are(names: tuple[str, ...]) -> None:
    door, long = behind(100 // len(names), *names)
    short = [door.enter(100, 0.3, name=name, max_tokens=10) for name in names]
    for tenth in range(20):
        sent = door.wake(0.4 + tenth / 10)
        for ticket in sent:
            door.first(ticket, 0.41 + tenth / 10)
    assert {each for each in short if each in door.leases} == set(short)
    assert [each.waits for each in long] == [True] * len(long)


def test_a_few_that_have_no_room_keep_no_others_behind_them() -> None:
    door, _ = behind(20, "x", used=39_300)
    for _ in range(4):
        door.enter(900, 0.3, name="x", max_tokens=10)
    short = door.enter(100, 0.3, name="x", max_tokens=10)
    assert door.wake(0.4) == [short]


def test_those_that_are_not_much_shorter_do_not() -> None:
    door, _ = behind(20, "x")
    same = door.enter(LONG // 16, 0.3, name="x", max_tokens=10)
    short = door.enter(LONG // 64, 0.3, name="x", max_tokens=10)
    assert door.wake(0.4) == [short]
    assert same.waits


def test_a_long_one_goes_first_where_it_has_room() -> None:
    """However many short ones come: each wake looks at it first."""
    door = Door("a")
    running = door.enter(LONG)
    long = door.enter(LONG, 0.1, name="x")
    short = [door.enter(100, 0.2, name="x") for _ in range(50)]
    door.first(running, 1.0)
    assert door.wake(1.0) == [long]
    assert all(each.waits for each in short)


def test_long_ones_of_its_flow_count_in_what_is_sent_before() -> None:
    """They go first where they have room. Without them, short ones were accepted in vain."""
    queue = Queue((0.0,))
    flow = queue.flow("x")
    waiting(queue, flow, LONG)
    assert queue.ahead_tokens(flow, 0, 100) == LONG


def test_the_short_ones_of_one_flow_that_have_no_room_leave_looks_to_others() -> None:
    door, _ = behind(20, "x", "y", used=39_300)
    for _ in range(30):
        door.enter(900, 0.3, name="x", max_tokens=10)
    door.queue.flows["y"].served += 50_000.0
    short = door.enter(100, 0.4, name="y", max_tokens=10)
    assert door.wake(0.5) == [short]
