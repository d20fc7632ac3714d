"""Which prompts an engine has still to do, when some leave the queue in another order."""

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.lease import Lease
from penstock.balancing.prefill_queue import ASIDE_S, CORRECTED_MAX


def lease(backend: Backend, tokens: int, now_s: float, client: str = "") -> Lease:
    return Lease(backend, Ask("/", prompt_tokens=tokens, stream=True, client=client), now_s)


@pytest.mark.parametrize("order", [1, -1])
def test_work_that_leaves_teaches_no_speed(backend: Backend, order: int) -> None:
    """Six long prompts leave, oldest or youngest first. Those behind them did not wait for them."""
    now_s = 0.0
    for _ in range(40):
        queued = [lease(backend, 30_000, now_s, "leaves") for _ in range(6)]
        behind = lease(backend, 3_000, now_s, "honest")
        for each in queued[::order]:
            each.end(now_s)
        now_s += 0.02 + behind.queued_work / 5_000.0
        behind.first_token(now_s)
        behind.complete(now_s + 1.0, 1, 3_000)
        now_s += 2.0
    assert backend.prefill_speed.work_per_s == pytest.approx(5_000.0, rel=0.3)
    assert backend.own.idle


def test_where_too_many_leave_those_behind_teach_nothing(backend: Backend) -> None:
    queued = [lease(backend, 3_000, 0.0) for _ in range(2 * CORRECTED_MAX)]
    behind = lease(backend, 3_000, 0.0)
    for each in queued:
        each.end(0.1)
    behind.first_token(0.3)
    assert behind.held_up


def test_a_prompt_that_is_overtaken_is_set_aside_when_it_must_be_over(backend: Backend) -> None:
    late = lease(backend, 3_000, 0.0)
    due_s = late.aside_s
    assert due_s > ASIDE_S + 0.2
    lease(backend, 100, 0.1).first_token(0.2)
    backend.advance(due_s - 0.01)
    assert late.queued_work == backend.own.queued_work > 0
    backend.advance(due_s)
    assert backend.own.queued_work == 0
    assert backend.active_decode_tokens >= 3_000
    late.first_token(due_s + 1.0)
    late.complete(due_s + 2.0, 1, 3_000)
    assert backend.prefill_speed.samples == 0  # its time says nothing


def test_nor_is_one_that_nobody_overtook(backend: Backend) -> None:
    first = lease(backend, 3_000, 0.0)
    backend.advance(1_000.0)
    assert backend.own.queued_work == first.queued_work > 0


def test_a_long_prompt_of_one_of_several_engines_stays_queued_while_it_works(
    backend: Backend,
) -> None:
    """Behind one address. The others serve short prompts meanwhile."""
    lease(backend, 60_000, 0.0)
    for tenth in range(1, 40):
        lease(backend, 100, tenth / 10 - 0.05).first_token(tenth / 10)
        backend.advance(tenth / 10)
    assert backend.own.queued_prefill_tokens == 60_000
