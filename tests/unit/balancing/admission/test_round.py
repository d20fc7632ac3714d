"""One wake does not look at the lines of all pools."""

from penstock.balancing.admission.round import LOOKS_MAX, Round
from penstock.balancing.backend import State
from penstock.balancing.fleet import Fleet, Pool
from tests.unit.balancing.admission.lines import Door, Priced, ready

POOLS = "pqrst"


def wake(lines: Round, looks: int, names: str = "abc") -> str:
    """The lines of one wake that looks at so many requests in each. "+": another must follow."""
    lines.begin(names)
    told = ""
    while (name := lines.next()) is not None:
        told += name
        for _ in range(looks):
            lines.looked()
    return told + "+" * lines.goes_on


def test_a_wake_that_looks_at_few_goes_through_all() -> None:
    lines = Round()
    assert [wake(lines, 1), wake(lines, 1)] == ["abc", "abc"]


def test_what_is_left_is_first_in_the_next_one_and_then_all_come_once_more() -> None:
    """What was first may have changed meanwhile."""
    lines = Round()
    assert [wake(lines, LOOKS_MAX) for _ in range(3)] == ["a+", "b+", "c+"]
    assert [wake(lines, 0) for _ in range(2)] == ["abc", "abc"]


def test_a_line_that_is_new_in_the_middle_comes_in_the_next_round() -> None:
    lines = Round()
    assert wake(lines, LOOKS_MAX, "ab") == "a+"
    assert [wake(lines, 0, "abc") for _ in range(2)] == ["b+", "abc"]


def test_when_all_pools_come_back_at_once_no_wake_sends_the_requests_of_all() -> None:
    door = Door("a", hold_for_backend_s=60.0)
    door.backends = tuple(ready(name) for name in POOLS)
    door.fleet = Fleet(tuple(Pool(each.name, (each,), Priced()) for each in door.backends))
    for backend in door.backends:
        backend.state = State.STARTING
        for _ in range(100):
            door.come(door.ticket(10, pool=backend.name), 0.0)
    assert door.admission.waiting == 100 * len(POOLS)
    for backend in door.backends:
        backend.state = State.READY
    wakes, changes = 0, -1
    while door.changes != changes:  # as long as one asks for another, and at the same moment
        changes = door.changes
        assert len(door.wake(0.1)) < 2 * LOOKS_MAX
        wakes += 1
    assert door.admission.waiting == 0
    assert len(POOLS) <= wakes <= 2 * len(POOLS)
