"""What is read from a backend."""

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.charges import leave_alone
from penstock.balancing.lease import Lease
from penstock.balancing.slowness import ALIKE
from penstock.balancing.verdict.survey import backend_facts


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


def test_a_lone_prompt_is_never_overdue() -> None:
    assert overdue_s(1) == 0.0
    assert 19.0 < overdue_s(2) < 20.0
