"""Who may be chosen at all, from which pool, and what is told and reserved with a choice."""

from random import Random

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import AdminState, Backend, State
from penstock.balancing.fleet import Fleet, Pool, UnknownModel
from penstock.balancing.gate import Gate, NoBackend, OwnerAway, UnknownResponse
from penstock.balancing.lease import Reason
from penstock.balancing.policies import POLICIES

ASK = Ask("/v1/chat/completions", "m", prompt_tokens=100, stream=True)


def pool_of(name: str, *names: str, policy: str = "least_tokens") -> Pool:
    """A pool of ready backends that list the model m."""
    backends = tuple(Backend(each, "http://127.0.0.1:1", name) for each in names)
    for backend in backends:
        backend.state = State.READY
        backend.models = {"m": b""}
    return Pool(name, backends, POLICIES[policy](backends))


def gate_of(*pools: Pool) -> Gate:
    return Gate(lambda: Fleet(pools), Random(1))


def chosen(
    gate: Gate, count: int = 20, ask: Ask = ASK, tried: tuple[Backend, ...] = ()
) -> set[str]:
    """Who serves so many requests, one after another."""
    names = set()
    for _ in range(count):
        lease = gate.choose(ask, 0.0, tried)
        names.add(lease.backend.name)
        lease.end(0.0)
    return names


def test_a_choice_reserves_before_the_next_one_is_made() -> None:
    gate = gate_of(pool_of("p", "a", "b", "c"))
    leases = [gate.choose(ASK, 0.0) for _ in range(6)]
    assert sorted(lease.backend.name for lease in leases) == ["a", "a", "b", "b", "c", "c"]
    for lease in leases:
        assert lease.backend.own.queued_prefill_tokens == 200
    for lease in leases:
        lease.end(0.0)
    assert all(lease.backend.own.idle for lease in leases)


@pytest.mark.parametrize("state", [State.STARTING, State.EJECTED])
def test_a_backend_that_is_not_ready_gets_nothing(state: State) -> None:
    pool = pool_of("p", "a", "b")
    pool.backends[0].state = state
    assert chosen(gate_of(pool)) == {"b"}


@pytest.mark.parametrize("admin_state", [AdminState.DRAIN, AdminState.MAINT])
def test_a_backend_that_its_operator_takes_out_gets_nothing(admin_state: AdminState) -> None:
    pool = pool_of("p", "a", "b")
    pool.backends[0].admin_state = admin_state
    assert chosen(gate_of(pool)) == {"b"}
    pool.backends[1].state = State.EJECTED
    with pytest.raises(NoBackend):
        gate_of(pool).choose(ASK, 0.0)


def test_a_backend_that_lists_other_models_gets_nothing() -> None:
    pool = pool_of("p", "a", "b")
    pool.backends[0].models = {"other": b""}
    assert chosen(gate_of(pool)) == {"b"}


def test_whoever_has_failed_the_request_is_not_asked_again() -> None:
    pool = pool_of("p", "a", "b")
    gate = gate_of(pool)
    assert chosen(gate, tried=pool.backends[:1]) == {"b"}
    with pytest.raises(NoBackend):
        gate.choose(ASK, 0.0, pool.backends)


def test_who_is_out_on_suspicion_serves_when_nobody_else_can() -> None:
    pool = pool_of("p", "a", "b")
    for backend in pool.backends:
        backend.state = State.EJECTED
    pool.backends[0].doubted = True
    assert chosen(gate_of(pool)) == {"a"}
    pool.backends[1].state = State.READY
    assert chosen(gate_of(pool)) == {"b"}


def test_the_first_pool_that_has_a_backend_serves() -> None:
    first, second = pool_of("first", "a"), pool_of("second", "b")
    assert chosen(gate_of(first, second)) == {"a"}
    first.backends[0].state = State.EJECTED
    assert chosen(gate_of(first, second)) == {"b"}


def test_a_model_that_no_pool_serves() -> None:
    with pytest.raises(UnknownModel):
        gate_of(pool_of("p", "a")).choose(Ask("/v1/completions", "other"), 0.0)


def test_why_is_told_with_the_choice() -> None:
    pool = pool_of("p", "a", "b")
    gate = gate_of(pool)
    assert gate.choose(ASK, 0.0).reason is Reason.COST
    pool.backends[0].state = State.EJECTED
    assert gate.choose(ASK, 0.0).reason is Reason.ONLY


def test_a_session_stays_and_is_told_when_it_cannot() -> None:
    pool = pool_of("p", "a", "b", "c", policy="session")
    gate = gate_of(pool)
    ask = Ask("/v1/chat/completions", "m", session="s", stream=True)
    home = gate.choose(ask, 0.0)
    assert chosen(gate, ask=ask) == {home.backend.name}
    assert home.reason is Reason.AFFINITY
    home.end(0.0)
    assert gate.choose(ask, 0.0, (home.backend,)).reason is Reason.SPILL


# What refers to a stored response goes where that is -----------------------------------------

REFERRING = Ask("/v1/responses", "m", response_id="resp_1", tenant="t")


def test_a_response_is_asked_of_who_made_it() -> None:
    pool = pool_of("p", "a", "b", "c")
    gate = gate_of(pool)
    gate.owners.put("resp_1", "c", 0.0, "t")
    lease = gate.choose(REFERRING, 1.0)
    assert (lease.backend.name, lease.bound, lease.reason) == ("c", True, Reason.AFFINITY)
    pool.backends[2].state = State.EJECTED
    with pytest.raises(OwnerAway):
        gate.choose(REFERRING, 1.0)


def test_another_tenants_response_is_unknown() -> None:
    gate = gate_of(pool_of("p", "a", "b"))
    gate.owners.put("resp_1", "a", 0.0, "somebody else")
    with pytest.raises(UnknownResponse):
        gate.choose(REFERRING, 1.0)


def test_a_response_is_lost_once_all_who_may_hold_it_have_said_so() -> None:
    pool = pool_of("p", "a", "b")
    gate = gate_of(pool)
    assert not gate.is_lost(REFERRING, {pool.backends[0]}, 0.0)
    assert gate.is_lost(REFERRING, set(pool.backends), 0.0)
    with pytest.raises(UnknownResponse):
        gate.choose(REFERRING, 1.0)
