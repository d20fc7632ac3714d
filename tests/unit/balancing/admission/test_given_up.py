"""Many that wait are given up at the same time: so many in a wake, and the next one goes on."""

from penstock.balancing.admission.line import GIVEN_UP_MAX
from penstock.balancing.backend import State
from tests.unit.balancing.admission.lines import Door, full

COUNT = 3 * GIVEN_UP_MAX + 5


def portions(door: Door, now_s: float) -> list[int]:
    """How many are told in each wake, until no wake asks for another one."""
    found = []
    while True:
        told, changes = len(door.told), door.changes
        door.wake(now_s)
        found.append(len(door.told) - told)
        if door.changes == changes:
            return found


def test_those_that_were_held_for_too_long_are_told_in_portions() -> None:
    door = Door("a", hold_for_backend_s=60.0)
    door.backends[0].state = State.STARTING
    for number in range(COUNT):
        door.enter(100, name=f"{number % 7}")
    assert portions(door, 61.0) == [GIVEN_UP_MAX] * 3 + [5]
    assert door.admission.waiting == 0


def test_those_whose_time_is_over_are_told_in_portions() -> None:
    door = full("a")
    for number in range(COUNT):
        door.enter(100, 0.01, name=f"{number % 7}", deadline_s=1_000.0)
    assert portions(door, 950.0)[:3] == [GIVEN_UP_MAX] * 3
    assert door.admission.waiting == 0
