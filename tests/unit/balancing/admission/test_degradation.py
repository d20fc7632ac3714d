"""Steps begin at their pressure and end some time after it has fallen, for each client."""

from typing import Any

from penstock.balancing.admission.degradation import END_SHARE, HOLD_S, Degradation, Limits, Step
from penstock.balancing.admission.line import Line
from penstock.balancing.admission.pressure import pressure
from tests.unit.balancing.admission.lines import full

WAIT_S = 30.0
NONE = Limits()


class Steps:
    """Some steps before a pool with one busy backend."""

    def __init__(self, *steps: Step) -> None:
        self.door = full("a")
        self.degradation = Degradation()
        self.degradation.follow(steps)
        self.waiting: list[Any] = []

    @property
    def line(self) -> Line:
        return self.door.admission.lines["p"]

    def limits(self, now_s: float, name: str = "x", rank: int = 0) -> Limits:
        return self.degradation.limits("p", self.line, name, rank, WAIT_S, now_s)

    def wait(self, wanted: float, name: str = "x") -> None:
        """So much waits that a client has this pressure, or a little more."""
        while self.waiting:
            self.door.admission.leave(self.waiting.pop(), 0.0)
        while pressure(self.line, self.line.queue.flow(name), 0, WAIT_S, 0.0) < wanted:
            self.waiting.append(self.door.enter(100, name=name))


def test_below_its_pressure_a_step_does_nothing() -> None:
    steps = Steps(Step(0, 0.2, max_tokens=512))
    assert steps.limits(0.0) == NONE
    steps.wait(0.15)
    assert steps.limits(0.0) == NONE
    steps.wait(0.2)
    assert steps.limits(0.0) == (512, None, False)


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


def test_of_several_steps_the_least_counts_and_other_classes_have_their_own() -> None:
    steps = Steps(
        Step(0, 0.1, max_tokens=512),
        Step(0, 0.2, max_tokens=128),
        Step(0, 0.1, prompt_tokens=9_000),
        Step(0, 0.2, prompt_tokens=8_000),
        Step(0, 0.3, prompt_tokens=1),
        Step(1, 0.01, max_tokens=1),
    )
    steps.wait(0.1)
    assert steps.limits(0.0) == (512, 9_000, False)
    steps.wait(0.2)
    assert steps.limits(0.0) == (128, 8_000, False)


def test_what_a_flood_brings_about_is_cut_from_its_own_requests_only() -> None:
    steps = Steps(Step(0, 0.1, max_tokens=512))
    steps.wait(0.5, "flood")
    assert steps.limits(0.0, "flood") == (512, None, False)
    assert steps.limits(0.0, "victim") == NONE
    steps.wait(0.0, "flood")
    assert steps.limits(1.0, "victim") == NONE


def test_a_pool_without_a_line_has_no_steps() -> None:
    steps = Steps(Step(0, 0.1, max_tokens=512))
    assert steps.degradation.limits("other", None, "x", 0, WAIT_S, 0.0) == NONE


def test_new_steps_begin_anew_and_the_same_go_on() -> None:
    steps = Steps(Step(0, 0.2, max_tokens=512))
    steps.wait(0.2)
    steps.limits(0.0)
    steps.wait(0.0)
    steps.degradation.follow((Step(0, 0.2, max_tokens=512),))
    assert steps.limits(1.0) == (512, None, False)
    steps.degradation.follow((Step(0, 0.2, max_tokens=256),))
    assert steps.limits(2.0) == NONE


def test_what_is_over_is_forgotten() -> None:
    steps = Steps(Step(0, 0.0001, max_tokens=512))
    for number in range(50):
        steps.wait(0.001, f"t{number}")
        steps.limits(0.0, f"t{number}")
    steps.limits(3.0 * HOLD_S, "t1")
    assert len(steps.degradation._until_s) <= 1
