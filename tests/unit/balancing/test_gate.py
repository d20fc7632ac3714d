"""The choice of a pool and a backend, its reason, and what it reserves."""

from random import Random

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import AdminState, State
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.gate import Gate, NoBackend, UnknownResponse
from penstock.balancing.lease import Reason
from penstock.balancing.policies.simple import LeastTokens
from tests.unit.balancing.backends import gate_over, ready

ASK = Ask("/v1/chat/completions", prompt_tokens=100, stream=True)


def chosen(gate: Gate, count: int = 20) -> set[str]:
    """Who serves so many requests, one after another."""
    names = set()
    for _ in range(count):
        lease = gate.choose(ASK, 0.0)
        names.add(lease.backend.name)
        lease.end(0.0)
    return names


def test_a_choice_reserves_before_the_next_one_is_made() -> None:
    gate = gate_over([ready(name) for name in "abc"])
    leases = [gate.choose(ASK, 0.0) for _ in range(6)]
    assert sorted(lease.backend.name for lease in leases) == ["a", "a", "b", "b", "c", "c"]
    assert {lease.reason for lease in leases} == {Reason.COST}
    for lease in leases:
        assert lease.backend.own.queued_prefill_tokens == 200
    for lease in leases:
        lease.end(0.0)
    assert all(lease.backend.own.idle for lease in leases)


def test_who_is_out_on_suspicion_serves_when_nobody_else_can() -> None:
    backends = a, b = [ready("a"), ready("b")]
    gate = gate_over(backends)
    a.state = b.state = State.EJECTED
    a.doubted = True
    assert chosen(gate) == {"a"}
    b.state = State.READY
    assert chosen(gate) == {"b"}
    b.admin_state = AdminState.DRAIN
    assert chosen(gate) == {"a"}
    a.admin_state = AdminState.MAINT
    with pytest.raises(NoBackend):
        gate.choose(ASK, 0.0)


def test_the_first_pool_serves_that_has_a_backend_which_is_not_doubted() -> None:
    first, second = ready("a"), ready("b")
    pools = tuple(Pool(each.name, (each,), LeastTokens()) for each in (first, second))
    gate = Gate(lambda: Fleet(pools), Random(1))
    assert chosen(gate) == {"a"}
    first.state = State.EJECTED
    assert chosen(gate) == {"b"}
    first.doubted = True
    assert chosen(gate) == {"b"}
    second.state = State.EJECTED
    assert chosen(gate) == {"a"}


def test_another_tenants_response_is_unknown() -> None:
    gate = gate_over([ready("a"), ready("b")])
    gate.owners.put("resp_1", "a", 0.0, "somebody else")
    with pytest.raises(UnknownResponse):
        gate.choose(Ask("/v1/responses", response_id="resp_1", tenant="t"), 1.0)
