"""How near a pool is to refusing, for each client and class."""

from typing import Any

import pytest

from penstock.balancing.admission.line import Line
from penstock.balancing.admission.pressure import NEXT_TOKENS, highest_pressure, pressure
from penstock.balancing.admission.ticket import Refused
from penstock.balancing.backend import State
from tests.unit.balancing.admission.lines import Door, full

WAIT_S = 30.0
TWO: dict[str, Any] = {"shares": (0.0, 0.0), "classes": ("high", "low")}


def line_of(door: Door) -> Line:
    return door.admission.lines["p"]


def of(door: Door, name: str, rank: int = 0, now_s: float = 0.0) -> float:
    line = line_of(door)
    return pressure(line, line.queue.flow(name), rank, WAIT_S, now_s)


def highest(door: Door, rank: int = 0, now_s: float = 0.0) -> float:
    return highest_pressure(line_of(door), rank, WAIT_S, now_s)


def test_while_nothing_waits_there_is_none() -> None:
    door = full("a")
    assert of(door, "x") == highest(door) == 0.0
    ticket = door.enter(1_000, name="x")
    assert of(door, "x") > 0.0
    door.admission.leave(ticket, 0.0)
    assert of(door, "x") == highest(door) == 0.0


def test_it_is_one_where_refusals_begin() -> None:
    door = full("a")
    for _ in range(10_000):
        before = of(door, "x")
        try:
            door.enter(NEXT_TOKENS, name="x", deadline_s=WAIT_S, impatient=False)
        except Refused:
            break
    assert before == pytest.approx(1.0, abs=0.02)
    assert highest(door) == of(door, "x") > 1.0 - 0.02


def test_after_a_while_in_a_lower_class_refusals_begin_earlier_and_so_does_it() -> None:
    door = full("a", **TWO)
    door.enter(FAR, name="x", rank=1)
    now = of(door, "x", 1)
    later = of(door, "x", 1, 21.0)
    assert later == pytest.approx(3.0 * now)


FAR = 20_000


def test_who_floods_raises_its_own() -> None:
    door = full("a")
    for _ in range(200):
        door.enter(2_000, name="flood")
    assert of(door, "flood") > 0.3
    assert of(door, "victim") < 0.03
    assert highest(door) == of(door, "flood")


def test_a_higher_class_is_before_all_clients_of_a_lower_one() -> None:
    door = full("a", **TWO)
    for _ in range(100):
        door.enter(2_000, name="flood", rank=0)
    assert of(door, "victim", 1) == pytest.approx(highest(door, 1))
    assert of(door, "victim", 1) > 0.3
    assert of(door, "victim", 0) < 0.03


def test_the_highest_is_that_of_the_client_with_the_most_before_it() -> None:
    door = full("a")
    for name, requests in (("few", 2), ("many", 60), ("some", 20)):
        for _ in range(requests):
            door.enter(2_000, name=name)
    each = [of(door, name) for name in ("few", "some", "many", "new")]
    assert highest(door) == max(each) == of(door, "many")


def test_who_learns_that_it_waits_longer_is_told_so_alone() -> None:
    door = full("a")
    for name in ("x", "y"):
        door.enter(4_000, name=name)
    flow = line_of(door).queue.flow("x")
    usual = of(door, "y")
    flow.errors = [1.0] * len(flow.errors)
    assert of(door, "x") > 2.0 * usual
    assert of(door, "y") == usual


def test_without_backends_nobody_waits_for_one() -> None:
    door = full("a")
    door.enter(4_000, name="x")
    door.backends[0].state = State.EJECTED
    assert of(door, "x") == 0.0
