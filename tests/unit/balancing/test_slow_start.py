"""Slow start: the share grows, is of what others have in flight and is never exceeded."""

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import AdminState, Backend, State
from penstock.balancing.gate import Gate
from penstock.balancing.lease import Lease
from penstock.balancing.starts import SlowStart
from tests.unit.balancing.backends import gate_over, numbered


def fleet(count: int = 4) -> tuple[Gate, list[Backend]]:
    backends = numbered(count)
    return gate_over(backends), backends


def warm(backend: Backend, now_s: float, warm_s: float = 30.0) -> None:
    backend.state = State.WARMING
    backend.slow_start = SlowStart(now_s, warm_s)


def ask(gate: Gate, now_s: float, tokens: int = 100) -> Lease:
    return gate.choose(Ask("/v1/completions", prompt_tokens=tokens), now_s)


def serve(gate: Gate, now_s: float) -> Backend:
    """One request that ends before the next begins."""
    lease = ask(gate, now_s)
    lease.end(now_s)
    return lease.backend


def occupy(backend: Backend, requests: int) -> None:
    for _ in range(requests):
        Lease(backend, Ask("/v1/completions", prompt_tokens=1_000, stream=True), 0.0)


def test_the_share_grows_from_a_tenth_to_all() -> None:
    slow = SlowStart(10.0, 30.0)
    assert slow.share(10.0) == 0.1
    assert abs(slow.share(25.0) - 0.55) < 1e-9
    assert slow.share(40.0) == slow.share(99.0) == 1.0
    assert not slow.over(39.9)
    assert slow.over(40.0)
    assert SlowStart(0.0, 0.0).over(0.0)


@pytest.mark.parametrize("tenth", range(10))
def test_it_has_its_share_in_flight_and_no_more(tenth: int) -> None:
    gate, backends = fleet()
    warm(backends[0], 0.0)
    for backend in backends[1:]:
        occupy(backend, 100)
    for _ in range(100):
        ask(gate, tenth * 3.0)
    ready = sum(each.requests_in_flight for each in backends[1:]) / 3
    assert backends[0].requests_in_flight == pytest.approx(
        min(100, (0.1 + 0.09 * tenth) * ready), abs=2
    )


def test_an_empty_one_helps_where_others_have_queues() -> None:
    """Six of eight are back beside two with long queues: none of them stays idle."""
    gate, backends = fleet(8)
    for backend in backends[:6]:
        warm(backend, 0.0)
    for backend in backends[6:]:
        occupy(backend, 30)
    taken = [ask(gate, 0.0).backend for _ in range(18)]
    assert not set(taken) & set(backends[6:])
    assert all(taken.count(each) == 3 for each in backends[:6])


def test_one_at_a_time_however_little_the_others_have() -> None:
    gate, backends = fleet(2)
    warm(backends[0], 0.0)
    for _ in range(3):
        ask(gate, 0.0)
    assert backends[0].requests_in_flight == 1
    assert backends[1].requests_in_flight == 2


def test_an_idle_time_is_not_saved_up() -> None:
    gate, backends = fleet()
    warm(backends[0], 0.0)
    # Nothing came for 25 s; now the share is high, but it is one of what others have.
    first = [ask(gate, 25.0).backend for _ in range(8)]
    assert first.count(backends[0]) <= 2


def test_alone_it_serves_all_the_same() -> None:
    gate, backends = fleet(2)
    warm(backends[0], 0.0)
    backends[1].state = State.EJECTED
    leases = [ask(gate, 0.0) for _ in range(5)]
    assert {lease.backend for lease in leases} == {backends[0]}
    for lease in leases:
        lease.end(0.0)
    backends[1].state = State.READY
    warm(backends[1], 0.0)  # both: nobody is left out
    assert {serve(gate, 0.0) for _ in range(50)} == set(backends)


def test_weight_is_part_of_the_share() -> None:
    gate, backends = fleet(3)
    backends[0].weight, backends[1].weight, backends[2].weight = 4.0, 2.0, 0.5
    warm(backends[0], 0.0)
    occupy(backends[1], 40)
    occupy(backends[2], 10)
    for _ in range(30):
        ask(gate, 0.0)
    # 20 for each unit of weight at first.
    assert 8 <= backends[0].requests_in_flight <= 12


def test_those_that_may_not_be_asked_do_not_count() -> None:
    """The long queue of one that is drained says nothing of what the others can bear."""
    gate, backends = fleet(3)
    warm(backends[0], 0.0)
    occupy(backends[2], 1_000)
    backends[2].admin_state = AdminState.DRAIN
    for _ in range(10):
        ask(gate, 0.0)
    assert backends[0].requests_in_flight == 1
