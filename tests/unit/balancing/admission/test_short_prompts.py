"""Short prompts behind long ones of their own flow, for which there is no room."""

from collections.abc import Iterator, Mapping

import pytest

from penstock.balancing.admission.looks import Looks
from penstock.balancing.admission.queue import Queue
from penstock.balancing.admission.short_turns import ShortTurns
from penstock.balancing.admission.ticket import Flow, Ticket
from tests.unit.balancing.admission.lines import FILLS, OPEN, Door, waiting

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


@pytest.mark.parametrize(("backends", "others"), [(1, 3), (1, 10), (64, 1), (64, 3)])
def test_those_of_others_that_have_no_room_keep_none_waiting_for_ever(
    backends: int, others: int
) -> None:
    """Each wake has looks at those of few flows: of six with one backend, of one with 64."""
    names = [f"b{number}" for number in range(backends)]
    door = Door(*names, kv_tokens=40_000)
    for ticket in [door.enter(39_300, name=name, max_tokens=100) for name in names]:
        door.first(ticket, 0.0)
    for number in range(others):
        for tokens in [LONG] * 4 + [900] * 4:
            door.enter(tokens, 0.1, name=f"other{number}", max_tokens=10)
    for _ in range(4):
        door.enter(LONG, 0.2, name="x", max_tokens=100)
    door.queue.flows["x"].served += 50_000.0
    short = door.enter(100, 0.3, name="x", max_tokens=10)
    sent = [ticket for tenth in range(4, 4 + 2 * (others + 1)) for ticket in door.wake(tenth / 10)]
    assert sent == [short]


def test_a_flow_that_rests_is_looked_at_where_looks_are_left() -> None:
    looks = Looks()
    x, y = Flow("x", 1), Flow("y", 1)
    looks.rest_short(x, 0, 2.0)
    looks.rest_short(y, 0, 1.5)
    for flow in (x, y):
        waiting(Queue((0.0,)), flow, 100)
    turns = ShortTurns(0, {x: 200.0, y: 200.0}, looks.resting_short(0, 1.0), OPEN)
    order = [turns.next() for _ in range(3)]
    assert [each and each.flow for each in order] == [y, x, None]
    assert looks.resting_short(1, 1.0) == {}
    assert looks.resting_short(0, 1.5) == {x: 2.0}


class Models(Mapping[str, bytes]):
    """The models of a backend. It counts how often it is asked whether it has one."""

    asked = 0

    def __init__(self, name: str) -> None:
        self._name = name

    def __getitem__(self, name: str) -> bytes:
        return {self._name: b""}[name]

    def __contains__(self, name: object) -> bool:
        Models.asked += 1
        return name == self._name

    def __iter__(self) -> Iterator[str]:
        return iter([self._name])

    def __len__(self) -> int:
        return 1


def test_a_wake_asks_once_whether_short_ones_of_a_kind_can_be_served() -> None:
    """The longer the line, the longer all streams would wait for the wake."""
    asked = []
    for short in (20, 120):
        door = Door("a", "b", "c", kv_tokens=40_000)
        for backend in door.backends:
            backend.models = Models("open" if backend.name != "a" else "full")
        door.enter(FILLS, model="full", name="before")
        for ticket in [
            door.enter(39_300, model="open", name=name, max_tokens=100) for name in "bc"
        ]:
            door.first(ticket, 0.1)
        for name in "uvwxyz":
            door.enter(LONG, 0.2, name=name, model="open", max_tokens=100)
            for _ in range(short):
                door.enter(100, 0.2, name=name, model="full", max_tokens=10)
        Models.asked = 0
        assert door.wake(1.0) == []
        asked.append(Models.asked)
    assert asked[0] == asked[1]
