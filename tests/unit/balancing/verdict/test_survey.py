"""What is read from a backend."""

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.lease import Lease
from penstock.balancing.outliers.failures import leave_alone
from penstock.balancing.speed.compare import ALIKE
from penstock.balancing.verdict.facts import PoolFacts, backend_facts
from penstock.balancing.verdict.window import Window


def overdue_s(prompts: int) -> float:
    """After 20 s, with so many streams that have no first token."""
    backend = Backend("a", "http://127.0.0.1:1")
    for _ in range(prompts):
        Lease(backend, Ask("/v1/completions", prompt_tokens=100, stream=True), 0.0)
    return backend_facts(backend, None, ALIKE, 20.0).overdue_s


def test_a_backend_is_left_alone_for_a_while_after_it_has_refused_for_load() -> None:
    backend = Backend("a", "http://127.0.0.1:1")
    leave_alone(backend, "client", 0.0, 5.0)
    told = [backend_facts(backend, None, ALIKE, now_s).left_alone for now_s in (4.9, 5.1)]
    assert told == [True, False]


@pytest.mark.parametrize("engine", [True, False])
def test_no_more_requests_fail_than_there_were(engine: bool) -> None:
    """Each one is under way at a look, and has failed before the next."""
    backend, window, lease = Backend("a", "http://127.0.0.1:1"), Window(), None
    for second in range(80):
        if lease is not None:
            lease.fail(float(second))
        path = "/v1/completions" if engine else "/tokenize"
        lease = Lease(backend, Ask(path, engine=engine), float(second)) if second < 60 else None
        facts = backend_facts(backend, None, ALIKE, float(second))
        window.add(PoolFacts(float(second), (facts,)))
        (seen,) = window.backends()
        assert seen.failures == seen.requests
        assert seen.minute_failures == seen.minute_requests
    assert seen.minute_requests > 30


def test_a_lone_prompt_is_never_overdue() -> None:
    assert overdue_s(1) == 0.0
    assert 19.0 < overdue_s(2) < 20.0
