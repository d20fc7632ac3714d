"""Health: every state with every event, the runs between them, and time spent out."""

from random import Random

import pytest

from penstock.balancing.backend import State
from penstock.health.machine import (
    FORGIVEN_S,
    NEXT,
    PROBATION_FALL,
    REQUESTS_FALL,
    Event,
    Health,
    step,
)

STAYS = {
    State.STARTING: {Event.FAILED, Event.OUT, Event.WARMED},
    State.READY: {Event.PASSED, Event.ARRIVED, Event.RECOVERED, Event.WARMED},
    State.SUSPECT: {Event.ARRIVED, Event.FAILED, Event.WARMED},
    State.EJECTED: {Event.PASSED, Event.ARRIVED, Event.FAILED, Event.OUT, Event.WARMED},
    State.WARMING: {Event.PASSED, Event.ARRIVED, Event.RECOVERED},
}


class Still(Random):
    """No jitter."""

    def random(self) -> float:
        return 0.5


def state_of(health: Health) -> State:
    return health.state


def machine(*, fall: int = 3, rise: int = 2, deep_fall: int = 2) -> Health:
    return Health(fall=fall, rise=rise, deep_fall=deep_fall, rng=Still())


def after(events: str, *, may_eject: bool = True, now_s: float = 1_000.0) -> Health:
    """`p`ass, `f`ail, `d`own, deep `P`ass and `F`ail, else warmed, in order, at one moment."""
    health = machine()
    for event in events:
        match event:
            case "p":
                health.passed()
            case "f":
                health.failed(now_s, may_eject=may_eject)
            case "d":
                health.down(now_s)
            case "P":
                health.deep_passed(now_s)
            case "F":
                health.deep_failed(now_s, may_eject=may_eject)
            case _:
                health.warmed()
    return health


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_every_pair_moves_or_is_known_to_stay(state: State, event: Event) -> None:
    if event in STAYS[state]:
        assert (state, event) not in NEXT
        assert step(state, event) is state
    else:
        assert step(state, event) is NEXT[state, event]


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ("", State.STARTING),
        ("ffff", State.STARTING),
        ("d", State.STARTING),
        ("p", State.READY),
        ("ffp", State.READY),
        ("pf", State.SUSPECT),
        ("pff", State.SUSPECT),
        ("pfff", State.EJECTED),
        ("pffpff", State.SUSPECT),
        ("pffp", State.READY),
        ("pd", State.EJECTED),
        ("pfd", State.EJECTED),
        ("pdpp", State.EJECTED),
        ("pdP", State.EJECTED),
        ("pdpP", State.EJECTED),
        ("pdppP", State.WARMING),
        ("pdpfpP", State.EJECTED),
        ("pdppPw", State.READY),
        ("pdppPf", State.EJECTED),
        ("pdppPF", State.EJECTED),
        ("pF", State.SUSPECT),
        ("pFp", State.SUSPECT),  # a live server may still hang
        ("pFpP", State.READY),
        ("pFPF", State.SUSPECT),
        ("pFF", State.EJECTED),
        ("pdppPff", State.EJECTED),
    ],
)
def test_runs(events: str, state: State) -> None:
    assert after(events).state is state


def test_on_probation_a_pool_that_cannot_spare_it_waits_for_certainty() -> None:
    assert after("pdppPff", may_eject=False).state is State.WARMING
    assert after("pdppPF", may_eject=False).state is State.WARMING
    assert after("pdppPfff", may_eject=False).state is State.EJECTED


def test_suspicion_ejects_only_where_the_pool_can_spare_it() -> None:
    assert after("pFF").doubted
    assert after("pFFF", may_eject=False).state is State.SUSPECT
    assert after("pfff", may_eject=False).state is State.EJECTED
    assert not after("pfff").doubted
    assert not after("pFFd").doubted  # then it died for certain
    assert not after("pdp").doubted
    assert after("pdpp").doubted  # it waits for its return, and answers
    assert not after("pdppf").doubted


def test_failed_requests_in_a_row_are_suspicious() -> None:
    health = after("p")
    health.requests_failed(0.0, REQUESTS_FALL - 1, may_eject=True)
    assert state_of(health) is State.READY
    health.requests_failed(0.0, REQUESTS_FALL, may_eject=False)
    assert state_of(health) is State.SUSPECT
    health.requests_failed(0.0, REQUESTS_FALL, may_eject=True)
    assert state_of(health) is State.EJECTED
    assert health.doubted


def test_on_probation_few_failed_requests_are_enough_where_the_pool_can_spare_it() -> None:
    health = after("pdppP")
    health.requests_failed(0.0, 0, may_eject=True)  # one that began in its former life
    health.requests_failed(0.0, PROBATION_FALL - 1, may_eject=True)
    health.requests_failed(0.0, PROBATION_FALL, may_eject=False)
    assert state_of(health) is State.WARMING
    health.requests_failed(0.0, PROBATION_FALL, may_eject=True)
    assert state_of(health) is State.EJECTED
    assert back_after_s(health, 0.0) >= 10.0  # it counts as one more ejection


def back_after_s(health: Health, ejected_s: float) -> float:
    """Let it pass all probes; returns how long it was kept out, to a tenth of a second."""
    health.passed()
    health.passed()
    for tenths in range(10_000):
        now_s = ejected_s + tenths / 10
        if health.wants_deep(now_s):
            health.deep_passed(now_s)
            assert state_of(health) is State.WARMING
            return tenths / 10
    raise AssertionError("never")


def test_a_restarted_server_is_back_at_once_and_one_that_flaps_ever_later() -> None:
    health = after("p")
    now_s, waits = 1_000.0, []
    for _ in range(16):
        health.down(now_s)
        waits.append(back_after_s(health, now_s))
        now_s += waits[-1] + 1.0
    assert waits[:4] == [0.0, 10.0, 20.0, 30.0]
    assert max(waits) == waits[-1] == FORGIVEN_S


def test_what_was_suspicion_and_is_certain_now_costs_no_more_than_certainty() -> None:
    health = after("pFF", now_s=50.0)
    health.down(51.0)
    assert back_after_s(health, 51.0) == 0.0


def test_suspicion_costs_ten_seconds_from_the_first_time() -> None:
    health = after("pFF", now_s=50.0)
    assert back_after_s(health, 50.0) == 10.0


def test_old_ejections_are_forgotten() -> None:
    health = after("p")
    for now_s in (1_000.0, 1_001.0, 1_002.0):
        health.down(now_s)
        health.passed()
        health.passed()
        health.deep_passed(now_s + 500)
        health.warmed()
    health.down(1_002.0 + 250)  # two are forgotten
    assert back_after_s(health, 1_252.0) == 10.0
    health.warmed()
    health.down(10_000.0)
    assert back_after_s(health, 10_000.0) == 0.0


def test_jitter_keeps_servers_that_fell_together_apart() -> None:
    waits = set()
    for seed in range(20):
        health = Health(fall=3, rise=2, deep_fall=2, rng=Random(seed))
        health.passed()
        health.deep_failed(0.0, may_eject=True)
        health.deep_failed(0.0, may_eject=True)
        waits.add(back_after_s(health, 0.0))
    assert len(waits) > 10
    assert all(8.0 <= wait <= 12.1 for wait in waits)
