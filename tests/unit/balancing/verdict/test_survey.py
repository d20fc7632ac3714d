"""What is read from a backend."""

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.engine_report import EngineReport
from penstock.balancing.lease import TOLD_S, Lease
from penstock.balancing.outliers.failures import leave_alone
from penstock.balancing.speed.compare import ALIKE
from penstock.balancing.speed.estimates import ENOUGH
from penstock.balancing.verdict.facts import (
    FULL,
    BackendFacts,
    PoolFacts,
    backend_facts,
    open_paces,
)
from penstock.balancing.verdict.window import Window
from tests.unit.balancing.admission.door import Door


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


def streaming(streams: int, *, tokens: int = 10, kv_usage: float = 0.0) -> Door:
    """Streams that had their first token at 0.1 s and so many tokens until 2.1 s."""
    door = Door("a")
    door.report(0.0, kv_usage=kv_usage)
    for _ in range(streams):
        request = door.enter(100)
        door.first(request, 0.1)
        door.leases[request].tokens(tokens)
    return door


def test_open_streams_tell_how_slow_their_backend_is() -> None:
    """Answers of a slow backend are long under way."""
    door = streaming(ENOUGH, tokens=10)
    assert open_paces(door.pool, 0.1 + TOLD_S / 2) == {}
    (pace,) = open_paces(door.pool, 2.1).values()
    (usual,) = open_paces(streaming(ENOUGH, tokens=100).pool, 2.1).values()
    assert pace.quick / usual.quick == pytest.approx(10.0, rel=0.2)
    assert open_paces(streaming(ENOUGH - 1).pool, 2.1) == {}


@pytest.mark.parametrize("kv_usage", [0.0, FULL - 0.01, FULL])
def test_streams_that_a_full_engine_may_have_paused_do_not_count(kv_usage: float) -> None:
    paces = open_paces(streaming(ENOUGH, kv_usage=kv_usage).pool, 2.1)
    assert (paces == {}) is (kv_usage >= FULL)


def test_streams_beside_long_prompts_or_before_slow_clients_do_not_count() -> None:
    door = streaming(ENOUGH)
    door.enter(50_000, 2.1)
    assert open_paces(door.pool, 2.1) == {}
    door = streaming(ENOUGH)
    for lease in door.leases.values():
        lease.held_up = True
    assert open_paces(door.pool, 2.1) == {}


@pytest.mark.parametrize(
    ("reports_s", "knows", "unseen"), [((0, 1, 2, 3), 0, 20), ((0,), 0, 0), ((0, 3), 30, 0)]
)
def test_what_was_sent_after_an_engine_reported_is_not_missed_in_it(
    reports_s: tuple[int, ...], knows: int, unseen: int
) -> None:
    """It gets 30 sequences after 0 s. A busy engine reports late."""
    window, report = Window(), None
    for second in range(4):
        if second in reports_s:
            report = EngineReport(float(second), running=knows if second else 0)
        facts = BackendFacts("a", sequences=30 if second else 0, report=report)
        window.add(PoolFacts(float(second), (facts,)))
    (seen,) = window.backends()
    assert seen.unseen == unseen
