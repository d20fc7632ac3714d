"""What fails looks busy: no policy that reads loads is drawn to it."""

from collections import Counter
from heapq import heappop, heappush
from random import Random

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.lease import Lease
from penstock.balancing.outliers.failures import BUSY_S
from penstock.balancing.outliers.penalties import HINT_S_MAX, PENALTY_S, ROW_MAX, Cause, Penalty
from penstock.balancing.policies import POLICIES
from penstock.balancing.speed.estimates import PRIOR_WORK_PER_S
from tests.unit.balancing.backends import LOAD_READING, answered, gate_over, numbered, ready

ASK = Ask("/v1/completions", prompt_tokens=200, stream=True, session="s-1")


def ask_of(client: str) -> Ask:
    return Ask("/v1/completions", prompt_tokens=200, client=client)


def test_a_failure_is_five_seconds_of_work_that_pass() -> None:
    backend = ready("a")
    Lease(backend, ASK, 10.0).fail(10.0)
    assert backend.own.idle
    assert backend.penalty_tokens(10.0) == PENALTY_S * PRIOR_WORK_PER_S
    assert backend.penalty_tokens(12.0) == pytest.approx(3.0 * PRIOR_WORK_PER_S)
    assert backend.penalty_requests(12.0) == pytest.approx(3.0 * PRIOR_WORK_PER_S / 200)
    assert backend.penalty_tokens(10.0 + PENALTY_S) == 0.0


def test_failures_in_a_row_add_up_to_a_limit() -> None:
    backend = ready("a")
    for row in range(1, 20):
        Lease(backend, ASK, 0.0).fail(0.0)
        assert backend.penalty.read(0.0) == PENALTY_S * min(row, ROW_MAX)
    answered(Lease(backend, ASK, 0.0), 0.1)
    Lease(backend, ASK, 0.1).fail(0.1)
    assert backend.penalty.until_s == PENALTY_S * ROW_MAX  # a lesser one takes nothing back


def test_a_backend_that_has_too_much_to_do_is_left_alone_for_its_time_to_a_limit() -> None:
    for busy_s, seconds in ((0.0, BUSY_S), (0.2, BUSY_S), (30.0, 30.0), (3_600.0, HINT_S_MAX)):
        backend = ready("a")
        Lease(backend, ASK, 0.0).fail(0.0, suspicious=False, penal=False, busy_s=busy_s)
        assert backend.left_alone.read(0.0, ASK.client) == seconds
        assert backend.is_closed(ASK.client, seconds - 0.1)
        assert not backend.is_closed(ASK.client, seconds)
        assert backend.penalty.read(0.0, ASK.client) == 0.0
        assert (backend.failures_total, backend.failures_in_row) == (0, 0)


def test_what_may_be_the_requests_own_fault_costs_from_the_second_in_a_row() -> None:
    backend = ready("a")
    for _ in range(3):  # each followed by an answer
        Lease(backend, ASK, 0.0).fail(0.0, doubtful=True)
        answered(Lease(backend, ASK, 0.0), 0.1)
    assert backend.penalty.read(0.0) == 0.0
    for _ in range(2):
        Lease(backend, ASK, 0.0).fail(0.0, doubtful=True)
    assert backend.penalty.read(0.0) == 2 * PENALTY_S


def test_whose_requests_fail_everywhere_makes_no_backend_dear_to_others() -> None:
    """Not alone, and not because another then meets one failure there."""
    backend = ready("a")
    for _ in range(3):
        Lease(backend, ask_of("a"), 0.0).fail(0.0, cause=Cause.CLIENT)
    Lease(backend, ask_of("b"), 0.0).fail(0.0)
    assert backend.penalty.read(0.0, "b") == PENALTY_S
    assert backend.penalty.read(0.0, "c") == 0.0
    Lease(backend, ask_of("a"), 0.0).fail(0.0, cause=Cause.CLIENT)
    assert backend.penalty.read(0.0, "b") == PENALTY_S
    Lease(backend, ask_of("d"), 0.0).fail(0.0)
    assert backend.penalty.read(0.0, "c") == PENALTY_S


def test_what_a_client_met_before_explains_nothing_that_it_meets_later() -> None:
    penalty = Penalty()
    assert penalty.charge_for("a", 0.0, explained=True)
    assert penalty.charge_for("a", 100.0)
    assert not penalty.charge_for("b", 100.1)
    assert not penalty.charge_for("b", 100.1, explained=True)
    penalty = Penalty()
    for explained in (True, False):  # within the same while: the second is not by its requests
        assert penalty.charge_for("a", 0.0, explained=explained)
    assert not penalty.charge_for("b", 0.1)


@pytest.mark.parametrize("name", LOAD_READING)
def test_the_penalised_is_passed_by_while_others_hold_less(name: str) -> None:
    backends = numbered(4)
    for backend in backends[1:]:
        for _ in range(20):
            Lease(backend, ASK, 0.0)
    failed = backends[0]
    for _ in range(2):
        Lease(failed, ASK, 0.0).fail(0.0)
    policy, rng = POLICIES[name](backends), Random(1)
    assert all(policy.choose(backends, ASK, 0.5, rng) is not failed for _ in range(200))
    assert policy.choose([failed], ASK, 0.5, rng) is failed


@pytest.mark.parametrize("in_flight", [1, 40], ids=["idle", "loaded"])
@pytest.mark.parametrize("name", LOAD_READING)
def test_a_black_hole_gets_next_to_nothing(name: str, in_flight: int) -> None:
    """One of four answers 500 in 1 ms, and nothing ejects it: its share after five seconds.

    The others serve a request in `in_flight` / 100 s; 300 requests a second come for 30 s.
    """
    backends = numbered(4)
    hole, gate = backends[0], gate_over(backends, name, 3)
    waiting: list[tuple[float, int, Lease]] = []
    went: Counter[bool] = Counter()
    for tick in range(30 * 300):
        now_s = tick / 300
        while waiting and waiting[0][0] <= now_s:
            done_s, _, lease = heappop(waiting)
            if lease.backend is hole:
                lease.fail(done_s, doubtful=True)
            else:
                answered(lease, done_s)
        ask = Ask("/v1/completions", prompt_tokens=200, stream=True, session=f"s-{tick % 97}")
        lease = gate.choose(ask, now_s)
        takes_s = 0.001 if lease.backend is hole else in_flight / 100
        heappush(waiting, (now_s + takes_s, tick, lease))
        if now_s > 5.0:
            went[lease.backend is hole] += 1
    assert went[True] / went.total() < 0.02
