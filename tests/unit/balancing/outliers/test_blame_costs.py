"""What the failures of one client or one kind of request cost others: nothing."""

from random import Random

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.gate import Gate
from penstock.balancing.lease import Lease
from penstock.balancing.outliers.penalties import PENALTY_S, Cause
from penstock.balancing.policies import POLICIES
from tests.unit.balancing.backends import numbered
from tests.unit.balancing.outliers.blamed import ATTACKER, VICTIM, ask_of, failed, fleet


def test_one_client_makes_a_backend_dear_to_itself_alone() -> None:
    pool, gate = fleet()
    backend = pool[0]
    for _ in range(3):
        failed(gate, backend, ask_of(ATTACKER), 0.0)
    assert backend.penalty.read(0.0, ATTACKER) == 3 * PENALTY_S
    assert backend.penalty.read(0.0, VICTIM) == 0.0
    failed(gate, backend, ask_of(VICTIM), 0.0)
    assert backend.penalty.read(0.0, "10.0.0.2") > 0.0  # two have met something


def test_what_fails_everywhere_makes_nobody_dear_to_others() -> None:
    pool, gate = fleet()
    for number in range(40):
        failed(gate, pool[number % 4], ask_of(ATTACKER), 0.1 * number)
    failed(gate, pool[0], ask_of("other"), 4.0)
    dear = [each.penalty.read(4.0, VICTIM) for each in pool]
    assert dear[1:] == [0.0, 0.0, 0.0]
    assert dear[0] <= PENALTY_S


@pytest.mark.parametrize("policy", ["least_requests", "peak_ewma", "least_tokens", "token_cost"])
def test_a_victims_requests_go_where_they_went_without_the_attacker(policy: str) -> None:
    """Its session's cache is at one backend, and half of an attacker's requests fail there."""
    backends = numbered(2)
    chosen = POLICIES[policy](backends)
    for _ in range(3):
        Lease(backends[0], ask_of(ATTACKER), 0.0).fail(0.0)
    Lease(backends[1], Ask("/", prompt_tokens=10_000, stream=True), 0.0)  # it has a little to do
    assert chosen.choose(backends, ask_of(VICTIM), 0.1, Random(1)) is backends[0]
    assert chosen.choose(backends, ask_of(ATTACKER), 0.1, Random(1)) is backends[1]


def test_one_clients_retries_leave_room_for_others() -> None:
    pool, gate = fleet()
    for backend in pool:  # nobody is alone any more
        failed(gate, backend, ask_of(VICTIM), 0.0)
        gate.may_retry(Lease(backend, ask_of(VICTIM), 0.0), Cause.NO_REQUEST, 0.0)
    for _ in range(50):
        lease = Lease(pool[0], ask_of(ATTACKER), 0.0)
        if gate.may_retry(lease, Cause.BACKEND, 0.0):
            Lease(pool[1], ask_of(ATTACKER), 0.0, retry=True)
    assert not gate.may_retry(Lease(pool[0], ask_of(ATTACKER), 0.0), Cause.BACKEND, 0.0)
    assert gate.may_retry(Lease(pool[0], ask_of("new"), 0.0), Cause.BACKEND, 0.0)


@pytest.mark.parametrize("clients", [1, 40])
def test_of_two_engines_that_die_together_as_much_moves_on_behind_one_address(clients: int) -> None:
    """All in prefill; the third has room, and the budget says how much at once."""
    pool, gate = fleet(3)
    leases = [Lease(pool[number % 3], ask_of(str(number % clients)), 0.0) for number in range(60)]
    moved = 0
    for lease in leases:
        if lease.backend is pool[2]:
            continue
        cause = gate.cause(lease, 1.0)
        lease.fail(1.0, cause=cause)
        if gate.may_retry(lease, cause, 1.0):
            moved += 1
            Lease(pool[2], lease.ask, 1.0, retry=True)
    assert moved >= 10  # a fifth of sixty, less what has ended meanwhile


def moves_on(gate: Gate, backends: list[Backend]) -> None:
    """All that a dead backend fails of a victim, far more than a fifth."""
    for _ in range(30):
        lease = Lease(backends[0], ask_of(VICTIM), 0.0)
        lease.fail(0.0)
        assert gate.may_retry(lease, Cause.BACKEND, 0.0)
        Lease(backends[1], ask_of(VICTIM), 0.0, retry=True)


def test_what_a_kind_of_request_fails_of_takes_nobodys_free_pass() -> None:
    pool, gate = fleet()
    for backend in pool[1:]:
        assert gate.may_retry(Lease(backend, ask_of(ATTACKER), 0.0), Cause.KIND, 0.0)
    moves_on(gate, pool)


def test_what_fails_everywhere_makes_no_backend_fail_beside_another() -> None:
    """An attacker's failures all over must not take the single dead backend's free pass."""
    pool, gate = fleet()
    for number in range(20):
        lease = Lease(pool[number % 4], ask_of(ATTACKER), 0.0)
        cause = gate.cause(lease, 0.0)
        lease.fail(0.0, cause=cause)
        if number >= 4:
            gate.may_retry(lease, cause, 0.0)
    moves_on(gate, pool)
