"""A canary's steps, as transcripts: what is told, and what it gets from then on."""

import json

import pytest

from penstock.balancing.canary.steps import Canary, Stage
from penstock.conf.canary import JudgeSettings
from tests.unit.balancing.canary.play import ONLY_ERRORS, Play, failing, settings


def test_a_good_version_goes_up_step_by_step() -> None:
    play = Play(Canary(settings(10, 50, 100), 0.0))
    told = play.requests(30_000)
    moves = [each for each in told if each[0] != "held"]
    assert moves == [("running", 50.0), ("promoted", 100.0)]
    assert play.canary.stage is Stage.PROMOTED


def test_no_step_is_left_before_its_time() -> None:
    play = Play(Canary(settings(10, 100, every_s=3_600), 0.0))
    assert play.requests(30_000) == []
    assert play.canary.percent == 10.0


def test_too_few_requests_hold_it_and_it_says_so() -> None:
    play = Play(Canary(settings(1, 100), 0.0))
    assert play.requests(3_000) == [("held", 1.0)]
    assert play.canary.why.startswith("too few requests to the new version: ")
    assert play.canary.why.endswith(" of 100")


def test_a_bad_version_goes_back_and_stays_back() -> None:
    play = Play(Canary(settings(10, 50, 100), 0.0))
    told = play.requests(15_000, failing(0.02))
    assert told[-1] == ("rolled_back", 0.0)
    assert play.to_canary <= 1_500
    assert play.canary.why.startswith("worse: errors ")
    assert " against 0 % of " in play.canary.why
    assert play.canary.look(play.now_s + 10_000) is None
    assert play.canary.percent == 0.0


def test_a_version_that_fails_everything_is_back_within_seconds() -> None:
    play = Play(Canary(settings(10, 100), 0.0))
    play.requests(15_000, failing(1.0))
    assert play.canary.stage is Stage.ROLLED_BACK
    assert play.now_s <= 15.0


def test_a_version_that_fails_only_under_load_is_caught_after_its_first_step() -> None:
    play = Play(Canary(settings(10, 50, 100), 0.0))
    while play.canary.step == 0:
        play.requests(100)
    assert play.requests(5_000, failing(0.03))[-1] == ("rolled_back", 0.0)


def test_it_begins_again_only_when_told() -> None:
    play = Play(Canary(settings(10, 50, 100), 0.0))
    play.requests(15_000, failing(0.1))
    event = play.canary.begin(play.now_s)
    assert (event.stage, event.percent) == (Stage.RUNNING, 10.0)
    assert play.requests(30_000)[-1] == ("promoted", 100.0)


@pytest.mark.parametrize(("move", "percent"), [("promote", 100.0), ("abort", 0.0)])
def test_an_operator_decides_at_any_time(move: str, percent: float) -> None:
    canary = Canary(settings(), 0.0)
    event = getattr(canary, move)(5.0)
    assert (event.percent, canary.percent, event.why) == (percent, percent, "told to")
    assert canary.look(100.0) is None


def test_blue_and_green_are_two_steps() -> None:
    play = Play(Canary(settings(50, 100), 0.0))
    assert [each for each in play.requests(30_000) if each[0] != "held"] == [("promoted", 100.0)]


def test_one_client_alone_decides_only_if_it_may() -> None:
    alone = ONLY_ERRORS.model_copy(update={"clients_min": 1})
    cases = ((ONLY_ERRORS, "held"), (alone, "promoted"))
    for judge, stage in cases:
        play = Play(Canary(settings(10, 100, judge=judge), 0.0), clients=1)
        play.requests(15_000)
        assert play.canary.stage.value == stage
    play = Play(Canary(settings(10, 100, judge=ONLY_ERRORS), 0.0), clients=1)
    play.requests(15_000, failing(0.1))
    assert play.canary.stage is Stage.HELD
    assert play.canary.why.startswith("worse for one client, not shown for others: errors ")


def test_the_only_client_decides_that_a_version_serves_nobody() -> None:
    """After a minute: before, nobody knows who else sends."""
    play = Play(Canary(settings(10, 100, every_s=10.0), 0.0), clients=1)
    assert play.requests(15_000, failing(1.0)) == [("held", 10.0), ("rolled_back", 0.0)]
    assert play.canary.why == f"worse: none of its {play.to_canary} requests was served"
    assert 60.0 <= play.now_s <= 63.0
    play = Play(Canary(settings(10, 100, every_s=10.0), 0.0), clients=1)
    assert play.requests(15_000, failing(0.9)) == [("held", 10.0)]


def test_a_restart_keeps_the_step_and_what_was_decided() -> None:
    play = Play(Canary(settings(10, 50, 100), 0.0))
    while play.canary.step == 0:
        play.requests(100)
    state = json.loads(json.dumps(play.canary.to_state()))
    again = Canary.from_state(settings(10, 50, 100), state, 7.0)
    assert (again.stage, again.percent, again.since_s) == (Stage.RUNNING, 50.0, 7.0)
    play.canary.abort(8.0)
    again = Canary.from_state(settings(10, 50, 100), play.canary.to_state(), 9.0)
    assert (again.stage, again.percent) == (Stage.ABORTED, 0.0)


def test_a_restart_never_gives_it_more_and_another_version_begins_anew() -> None:
    canary = Canary(settings(10, 50, 100), 0.0)
    canary.step = 1
    state = canary.to_state()
    assert Canary.from_state(settings(20, 60, 100), state, 0.0).percent == 20.0
    other = settings(10, 50, 100).model_copy(update={"pool": "another"})
    assert Canary.from_state(other, state, 0.0).percent == 10.0
    promoted = settings(10, 50, 100)
    canary.promote(1.0)
    assert Canary.from_state(promoted, canary.to_state(), 0.0).percent == 100.0


@pytest.mark.parametrize(
    "state", [None, [], {}, {"version": 2}, {"version": 1, "pool": "next", "model": None}, "x"]
)
def test_a_state_that_cannot_be_read_begins_anew(state: object) -> None:
    canary = Canary.from_state(settings(10, 50, 100), state, 0.0)
    assert (canary.stage, canary.percent) == (Stage.RUNNING, 10.0)


def test_a_damaged_state_begins_anew() -> None:
    state = Canary(settings(), 0.0).to_state()
    for key, value in (("fresh_keys", "AAAA"), ("stage", "odd"), ("tries", None)):
        assert Canary.from_state(settings(), state | {key: value}, 0.0).stage is Stage.RUNNING


def test_what_is_not_compared_does_not_roll_back() -> None:
    judge = JudgeSettings(errors=None, ttft=None, itl=None, length=None)
    play = Play(Canary(settings(10, 100, judge=judge), 0.0))
    play.requests(3_000, failing(0.5))
    assert play.canary.stage is Stage.HELD
