"""Health: every state with every event, and the runs between them."""

import pytest

from balancing.backend import State
from health.machine import NEXT, Event, Health, step

STAYS = {
    State.STARTING: {Event.FAIL, Event.FAIL_LIMIT, Event.REFUSED},
    State.READY: {Event.PASS, Event.PASS_LIMIT},
    State.SUSPECT: {Event.FAIL},
    State.EJECTED: {Event.PASS, Event.FAIL, Event.FAIL_LIMIT, Event.REFUSED},
    State.WARMING: {Event.PASS},
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_every_pair_moves_or_is_known_to_stay(state: State, event: Event) -> None:
    if event in STAYS[state]:
        assert (state, event) not in NEXT
        assert step(state, event) is state
    else:
        assert step(state, event) is NEXT[state, event]


def health(events: str, *, fall: int = 3, rise: int = 2) -> State:
    """`p`ass, `f`ail and `r`efused, in order."""
    machine = Health(fall=fall, rise=rise)
    for event in events:
        {"p": machine.passed, "f": machine.failed, "r": machine.refused}[event]()
    return machine.state


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ("", State.STARTING),
        ("ffff", State.STARTING),
        ("r", State.STARTING),
        ("p", State.READY),
        ("ffp", State.READY),
        ("pf", State.SUSPECT),
        ("pff", State.SUSPECT),
        ("pfff", State.EJECTED),
        ("pffpff", State.SUSPECT),
        ("pffp", State.READY),
        ("pr", State.EJECTED),
        ("pfr", State.EJECTED),
        ("prp", State.EJECTED),
        ("prpfp", State.EJECTED),
        ("prpp", State.READY),
    ],
)
def test_runs(events: str, state: State) -> None:
    assert health(events) is state
