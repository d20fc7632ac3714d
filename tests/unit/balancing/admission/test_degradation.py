"""How near a pool is to refusing, for each client, and what is cut from requests before that."""

from math import inf
from typing import Any

import pytest

from penstock.balancing.admission.degradation import (
    END_SHARE,
    HOLD_S,
    NEXT_TOKENS,
    Degradation,
    Limits,
    Step,
    highest_pressure,
    pressure,
)
from penstock.balancing.admission.queued_request import QueuedRequest
from penstock.balancing.backend import State
from tests.unit.balancing.admission.door import FILLS, HIGH_LOW, Door, full

WAIT_S = 30.0
NONE = Limits()

# The pressure ------------------------------------------------------------------------------


def of(door: Door, name: str, rank: int = 0) -> float:
    return pressure(door.pool, door.pool.queue.tenant(name), rank, WAIT_S)


def highest(door: Door, rank: int = 0) -> float:
    return highest_pressure(door.pool, rank, WAIT_S)


def test_while_nothing_waits_there_is_no_pressure() -> None:
    door = full("a")
    assert of(door, "x") == highest(door) == 0.0
    request = door.enter(1_000, name="x")
    assert of(door, "x") > 0.0
    door.admission.leave(request, 0.0)
    assert of(door, "x") == highest(door) == 0.0


def test_it_is_one_where_refusals_begin() -> None:
    door = full("a")
    before = 0.0
    for _ in range(10_000):
        before = of(door, "x")
        request = door.enter(NEXT_TOKENS, name="x", deadline_s=WAIT_S, impatient=False)
        if request in door.refused:
            break
    assert before == pytest.approx(1.0, abs=0.02)
    assert highest(door) == of(door, "x") > 1.0 - 0.02


def test_who_floods_raises_its_own() -> None:
    door = full("a")
    for _ in range(200):
        door.enter(2_000, name="flood")
    assert of(door, "flood") > 0.3
    assert of(door, "victim") < 0.03
    assert highest(door) == of(door, "flood")


def test_a_higher_class_is_before_all_clients_of_a_lower_one() -> None:
    door = full("a", **HIGH_LOW)
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


def test_without_a_backend_that_can_serve_there_is_none() -> None:
    door = full("a")
    door.enter(FILLS, name="x")
    door.backends[0].state = State.EJECTED
    assert of(door, "x") == 0.0


# Steps -------------------------------------------------------------------------------------


class Steps:
    """Some steps before a pool with one busy backend."""

    def __init__(self, *steps: Step) -> None:
        self.door = full("a")
        self.degradation = Degradation()
        self.degradation.follow(steps)
        self.waiting: list[QueuedRequest] = []

    def limits(self, now_s: float, name: str = "x", rank: int = 0) -> Limits:
        return self.degradation.limits(self.door.pool, name, rank, WAIT_S, now_s)

    def wait(self, wanted: float, name: str = "x") -> None:
        """So much waits that a client has this pressure, or a little more."""
        while self.waiting:
            self.door.admission.leave(self.waiting.pop(), 0.0)
        while of(self.door, name) < wanted:
            fields: dict[str, Any] = {"name": name, "deadline_s": inf}
            self.waiting.append(self.door.enter(100, **fields))


SEVERAL = (
    Step(0, 0.1, max_tokens=512),
    Step(0, 0.2, max_tokens=128),
    Step(0, 0.1, prompt_tokens=9_000),
    Step(0, 0.2, prompt_tokens=8_000),
    Step(0, 0.3, prompt_tokens=1),
    Step(1, 0.01, max_tokens=1),  # of another class
)


@pytest.mark.parametrize(
    ("steps", "limits"),
    [
        ((Step(0, 0.2, max_tokens=512),), {0.0: NONE, 0.15: NONE, 0.2: (512, None, False)}),
        (SEVERAL, {0.1: (512, 9_000, False), 0.2: (128, 8_000, False)}),
        (
            (Step(0, 0.1, max_tokens=512), Step(0, 0.2, fall_back=True)),
            {0.1: (512, None, False), 0.2: (512, None, True)},
        ),
    ],
    ids=["one", "of several the least counts", "a fall-back"],
)
def test_each_step_begins_at_its_own_pressure(
    steps: tuple[Step, ...], limits: dict[float, Limits]
) -> None:
    played = Steps(*steps)
    for wanted, cut in limits.items():
        played.wait(wanted)
        assert played.limits(0.0) == cut


def test_it_ends_when_the_pressure_has_been_lower_for_a_while() -> None:
    steps = Steps(Step(0, 0.2, max_tokens=512))
    steps.wait(0.2)
    assert steps.limits(0.0) == (512, None, False)
    steps.wait(0.2 * END_SHARE)
    for now_s in (HOLD_S - 1.0, 2.0 * HOLD_S - 2.0):  # not lower than that: it goes on
        assert steps.limits(now_s) == (512, None, False)
    steps.wait(0.0)
    last_s = 2.0 * HOLD_S - 2.0
    assert steps.limits(last_s + HOLD_S - 0.1) == (512, None, False)
    assert steps.limits(last_s + HOLD_S + 0.1) == NONE
    steps.wait(0.2 * END_SHARE)  # once it has ended, it begins at its own pressure again
    assert steps.limits(last_s + HOLD_S + 0.2) == NONE


def test_nobody_knows_what_was_while_no_request_came_so_it_ends() -> None:
    steps = Steps(Step(0, 0.2, max_tokens=512))
    steps.wait(0.2)
    steps.limits(0.0)
    steps.wait(0.2 * END_SHARE)
    assert steps.limits(HOLD_S + 1.0) == NONE


def test_what_a_flood_brings_about_is_cut_from_its_own_requests_only() -> None:
    steps = Steps(Step(0, 0.1, max_tokens=512))
    steps.wait(0.5, "flood")
    assert steps.limits(0.0, "flood") == (512, None, False)
    assert steps.limits(0.0, "victim") == NONE
    steps.wait(0.0, "flood")
    assert steps.limits(1.0, "victim") == NONE


def test_a_pool_without_admission_has_no_steps() -> None:
    steps = Steps(Step(0, 0.1, max_tokens=512))
    assert steps.degradation.limits(None, "x", 0, WAIT_S, 0.0) == NONE


def test_new_steps_begin_anew_and_the_same_go_on() -> None:
    steps = Steps(Step(0, 0.2, max_tokens=512))
    steps.wait(0.2)
    steps.limits(0.0)
    steps.wait(0.0)
    steps.degradation.follow((Step(0, 0.2, max_tokens=512),))
    assert steps.limits(1.0) == (512, None, False)
    steps.degradation.follow((Step(0, 0.2, max_tokens=256),))
    assert steps.limits(2.0) == NONE
