"""Where sessions stay under `token_cost`, and how its choices are explained."""

from collections.abc import Sequence
from random import Random

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend, State
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.gate import Gate
from penstock.balancing.lease import Lease, Reason
from penstock.balancing.policies.token_cost import (
    STRICT_S_MAX,
    TokenCost,
)
from penstock.proxy.admin.explanation import render
from tests.unit.balancing.backends import ready
from tests.unit.balancing.policies.test_token_cost import (
    TURN,
    choose,
    prompt,
    somewhere,
    stream,
)

# Sessions ---------------------------------------------------------------------------------


def gate_of(backends: Sequence[Backend], *, strict: bool = False) -> Gate:
    fleet = Fleet((Pool("p", tuple(backends), TokenCost(strict=strict)),))
    return Gate(lambda: fleet, Random(1))


def test_a_session_that_stays_is_affinity_and_one_that_goes_is_spill() -> None:
    gate = gate_of([ready("a"), ready("b")])
    ask = TURN.changed(session="s")
    first = gate.choose(ask, 0.0)
    assert first.reason is Reason.COST
    first.end(0.0)
    again = gate.choose(ask, 1.0)
    assert (again.reason, again.backend) == (Reason.AFFINITY, first.backend)
    again.end(1.0)
    for _ in range(5):
        Lease(first.backend, prompt(30_000), 2.0)
    moved = gate.choose(ask, 2.0)
    assert moved.reason is Reason.SPILL
    assert moved.backend is not first.backend


def test_a_strict_session_stays_until_that_costs_too_much() -> None:
    gate = gate_of([ready("a"), ready("b")], strict=True)
    ask = Ask("/", prompt_tokens=100, stream=True, session="s")
    home = gate.choose(ask, 0.0).backend
    Lease(home, prompt(30_000), 0.0)
    assert gate.choose(ask, 0.0).backend is home
    while home.wait_s(0.0) < 2 * STRICT_S_MAX:
        Lease(home, prompt(30_000), 0.0)
    assert gate.choose(ask, 0.0).reason is Reason.SPILL


def test_a_home_that_fails_is_left_but_by_strict_sessions() -> None:
    for strict in (False, True):
        a, b = ready("a"), ready("b")
        gate = gate_of([a, b], strict=strict)
        ask = Ask("/", prompt_tokens=100, stream=True, session="s")
        home = gate.choose(ask, 0.0).backend
        for _ in range(40):
            stream(b if home is a else a, 20_000)
        home.penalty.charge(0.0, hint_s=1.0)
        assert (gate.choose(ask, 0.0).backend is home) is strict


def test_an_unfit_home_is_left() -> None:
    a, b = ready("a"), ready("b")
    gate = gate_of([a, b], strict=True)
    ask = Ask("/", prompt_tokens=100, stream=True, session="s")
    home = gate.choose(ask, 0.0).backend
    home.state = State.EJECTED
    assert gate.choose(ask, 0.0).backend is not home


# Explanations -----------------------------------------------------------------------------


def test_what_is_explained_is_what_is_chosen_and_nothing_changes() -> None:
    rng = Random(1)
    for seed in range(30):
        fleet = somewhere(Random(seed), 5, 0.0)
        gate = gate_of(fleet)
        ask = prompt(rng.randint(10, 30_000))
        told = gate.explain(ask, 0.0)
        again = gate.explain(ask, 0.0)
        assert gate.choose(ask, 0.0).backend.name in told.chosen
        assert render(ask, told, None) == render(ask, again, None)


def test_who_cannot_take_it_says_why() -> None:
    fleet = [ready(name) for name in "abcd"]
    fleet[1].state, fleet[1].reason = State.EJECTED, "unreachable"
    fleet[2].models = {"other": b""}
    told = gate_of(fleet).explain(Ask("/", model="m"), 0.0)
    assert [each.out for each in told.candidates] == [
        "",
        "ejected: unreachable",
        "does not serve the model",
        "",
    ]


def test_nobody_is_told_too() -> None:
    backend = ready("a")
    backend.state = State.STARTING
    told = gate_of([backend]).explain(prompt(10), 0.0)
    assert told.pool is None
    assert told.chosen == []
    assert told.candidates[0].out


@pytest.mark.parametrize("seed", range(20))
def test_what_would_make_it_win_does(seed: int) -> None:
    """Take the tokens ahead away that it says are too many, and it is among the cheapest."""
    policy, fleet, ask = TokenCost(), [ready("a"), ready("b")], prompt(100 + 400 * seed)
    for _ in range(2 + seed % 3):
        Lease(fleet[0], prompt(10_000 + 1_000 * seed), 0.0)
        Lease(fleet[1], prompt(1), 0.0)
    assert choose(policy, fleet, ask) == "b"
    told = policy.explain(fleet, ask, 0.0).parts[0]
    assert "fewer tokens to prefill" in told.to_win
    tokens = int(told.to_win.split(" ")[0].replace(",", ""))
    assert 0 < tokens <= fleet[0].queued_prefill_tokens
    work = fleet[0].queued_work * tokens / fleet[0].queued_prefill_tokens
    fleet[0].own.queued_work -= int(work * 0.9)
    assert choose(policy, fleet, ask) == "b"
    fleet[0].own.queued_work -= int(work * 0.11)
    assert "a" in choose(policy, fleet, ask)


def test_one_that_failed_is_told_to_wait_for_the_end_of_its_penalty() -> None:
    fleet = [ready("a"), ready("b")]
    fleet[0].penalty.charge(0.0)
    told = gate_of(fleet).explain(prompt(100), 2.0)
    assert told.chosen == ["b"]
    assert told.candidates[0].part.to_win == "the end of its penalty for failures, in 3.0 s"
    Lease(fleet[0], prompt(9_000), 2.0)
    told = gate_of(fleet).explain(prompt(100), 2.0)
    way = told.candidates[0].part.to_win
    assert way == "the end of its penalty for failures, in 3.0 s and 100% less load of every kind"
    Lease(fleet[1], prompt(2_000), 2.0)
    told = gate_of(fleet).explain(prompt(100), 2.0)
    way = told.candidates[0].part.to_win
    assert way.startswith("the end of its penalty for failures, in 3.0 s and ")
    assert "fewer tokens to prefill before it" in way


def test_one_that_is_out_on_suspicion_is_told_so() -> None:
    fleet = [ready("a"), ready("b")]
    fleet[0].state, fleet[0].reason, fleet[0].doubted = State.EJECTED, "stalled", True
    told = gate_of(fleet).explain(prompt(100), 0.0)
    assert told.candidates[0].out == (
        "ejected on suspicion, stalled: used only when no other can serve"
    )


def test_a_strict_session_that_would_not_move_for_an_idle_one_is_told_so() -> None:
    fleet = [ready("a"), ready("b")]
    gate = gate_of(fleet, strict=True)
    ask = Ask("/", prompt_tokens=100, stream=True, session="s")
    home = gate.choose(ask, 0.0).backend
    (other,) = {"a", "b"} - {home.name}
    told = {each.backend.name: each.part for each in gate.explain(ask, 0.0).candidates}
    assert told[other].to_win == ""
    assert told[other].why_not == f"the session stays at {home.name} unless the cost rises there"
    while home.wait_s(0.0) < STRICT_S_MAX:  # it stays still, but for a bit
        Lease(home, prompt(30_000), 0.0)
    Lease(fleet[0] if fleet[0] is not home else fleet[1], prompt(30_000), 0.0)
    told = {each.backend.name: each.part for each in gate.explain(ask, 0.0).candidates}
    assert "fewer tokens to prefill" in told[other].to_win


def test_what_would_decide_between_equals_is_told() -> None:
    fleet = [ready("a"), ready("b")]
    gate = gate_of(fleet)
    first = gate.choose(prompt(100), 0.0)
    first.end(0.0)
    told = gate.explain(prompt(100), 0.0)
    (second,) = {"a", "b"} - {first.backend.name}
    assert told.chosen == [second]
    ways = {each.backend.name: each.part.to_win for each in told.candidates}
    assert ways[second] == ""
    assert ways[first.backend.name].startswith("a longer time without a request")
    assert f"same as {second}" in ways[first.backend.name]
