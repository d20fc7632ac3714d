"""A fifth of what is in flight, three at least, and what one dead backend loses."""

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.lease import Lease
from penstock.balancing.retry_budget import CALM_S, RetryBudget

ASK = Ask("/v1/completions", prompt_tokens=100, stream=True)


def fleet(size: int = 4) -> list[Backend]:
    return [Backend(f"b{i}", "http://127.0.0.1:1") for i in range(size)]


def begin(backends: list[Backend], count: int, *, retry: bool) -> list[Lease]:
    """So many requests, spread evenly."""
    return [Lease(backends[i % len(backends)], ASK, 0.0, retry=retry) for i in range(count)]


def failing(backends: list[Backend]) -> RetryBudget:
    """A budget that has seen all of these fail."""
    budget = RetryBudget()
    for backend in backends:
        budget.allows(backends, backend, 0.0)
    return budget


@pytest.mark.parametrize(
    ("in_flight", "allowed"), [(4, 3), (19, 3), (20, 4), (99, 19), (100, 20), (1_000, 200)]
)
def test_so_many_retries_at_once(in_flight: int, allowed: int) -> None:
    """`in_flight` counts the request that asks, whose lease has ended."""
    for retries in (allowed - 1, allowed):
        backends = fleet()
        begin(backends, in_flight - 1 - retries, retry=False)
        begin(backends, retries, retry=True)
        assert failing(backends).allows(backends, backends[0], 0.0) is (retries < allowed)


def test_a_retry_that_has_its_first_token_is_none_any_more() -> None:
    backends = fleet()
    budget = failing(backends)
    retries = begin(backends, 3, retry=True)
    assert not budget.allows(backends, backends[0], 0.0)
    retries[0].first_token(0.1)
    assert budget.allows(backends, backends[0], 0.1)
    for lease in retries:
        lease.end(0.2)
    assert all(backend.own.idle for backend in backends)


def test_what_a_single_backend_fails_moves_on() -> None:
    """A quarter of 200 at once, though a fifth is the budget; a second one is another thing."""
    backends = fleet()
    budget = RetryBudget()
    for lease in begin(backends, 200, retry=False)[::4]:
        lease.end(0.0)
        assert budget.allows(backends, backends[0], 0.0)
        begin(backends[1:], 1, retry=True)
    assert sum(backend.own.retries for backend in backends) == 50
    assert not budget.allows(backends, backends[1], 0.1)
    assert not budget.allows(backends, backends[0], 0.2)
    assert budget.allows(backends, backends[2], 0.2 + CALM_S)


def test_what_one_client_met_elsewhere_takes_nobody_elses_free_pass() -> None:
    """An answer without a token, say, from which its client leaves before the next one."""
    backends = fleet()
    budget = RetryBudget()
    begin(backends, 200, retry=False)
    begin(backends[1:], 140, retry=True)  # twice the budget
    assert budget.allows(backends, backends[1], 0.0, "attacker")
    assert budget.allows(backends, backends[0], 0.1, "victim")
    assert not budget.allows(backends, backends[2], 0.1, "attacker")
    assert budget.allows(backends, backends[0], 0.1, "another")
    budget.allows(backends, backends[1], 0.2, "victim")  # a second client met that
    assert not budget.allows(backends, backends[0], 0.3, "another")


def test_nor_does_a_sure_failure_need_a_second_client() -> None:
    backends = fleet()
    budget = RetryBudget()
    begin(backends[1:], 6, retry=True)
    assert budget.allows(backends, backends[1], 0.0, "a", sure=True)
    assert not budget.allows(backends, backends[0], 0.1, "b")


def test_failures_of_several_clients_are_those_of_one_again_after_a_while() -> None:
    """It goes on failing there, and another backend dies with its requests."""
    backends = fleet()
    budget = RetryBudget()
    begin(backends[1:], 6, retry=True)
    budget.allows(backends, backends[1], 0.0, "another")
    for number in range(1, 10):
        budget.allows(backends, backends[1], number * 0.9 * CALM_S, "one")
    assert budget.allows(backends, backends[0], 9 * 0.9 * CALM_S, "innocent")
    budget.allows(backends, backends[1], 9.1 * CALM_S, "another")
    budget.allows(backends, backends[1], 9.2 * CALM_S, "one")
    assert not budget.allows(backends, backends[2], 9.3 * CALM_S, "innocent")


def test_names_that_discovery_no_longer_finds_are_forgotten() -> None:
    budget = RetryBudget()
    for number in range(1_000):
        backends = [Backend(f"pod-{number + i}", "http://127.0.0.1:1") for i in range(3)]
        assert budget.allows(backends, backends[0], number * CALM_S)
    assert len(budget) == 1


def test_a_fleet_of_failures_gets_a_fifth_on_top() -> None:
    """100 requests at once on four backends that fail them all: attempts beyond the first."""
    backends = fleet()
    budget = RetryBudget()
    retries = 0
    for lease in begin(backends, 100, retry=False):
        lease.fail(0.0)
        if budget.allows(backends, lease.backend, 0.0):
            begin([b for b in backends if b is not lease.backend], 1, retry=True)
            retries += 1
    assert 20 <= retries <= 24  # in flight are, at the end, hardly more than the retries
