"""A stream that has begun without a token: its prompt is in no queue, its times teach nothing."""

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.lease import Lease
from penstock.balancing.speed.estimates import PRIOR_WORK_PER_S, work_of
from tests.unit.balancing.admission.door import full

WHOLE_S = work_of(10_000, 10_000) / PRIOR_WORK_PER_S


def stream_on(backend: Backend, began_s: float = 0.0, prompts: int = 1) -> Lease:
    ask = Ask("/", prompt_tokens=10_000, prompts=prompts, stream=True)
    return Lease(backend, ask, began_s)


def test_its_prompt_is_held_and_not_queued(backend: Backend) -> None:
    lease = stream_on(backend)
    lease.answering(1.0)
    assert (backend.queued_prefill_tokens, backend.active_decode_tokens) == (0, 10_000)
    assert (backend.queued_work, backend.streams, len(backend.queue)) == (0, 1, 0)
    assert lease.prefilling  # its first token is still to come
    lease.first_token(9.0)
    lease.tokens(3)
    assert (backend.queued_prefill_tokens, backend.active_decode_tokens) == (0, 10_003)
    assert (backend.streams, lease.first_token_s) == (1, 9.0)
    lease.complete(9.1, 3, 10_000)
    assert backend.own.idle


@pytest.mark.parametrize("shown", [True, False])
def test_it_may_end_at_any_moment(backend: Backend, shown: bool) -> None:
    lease = stream_on(backend)
    lease.answering(1.0)
    if shown:
        lease.first_token(2.0)
    lease.end(3.0)
    lease.answering(4.0)
    assert backend.own.idle


def test_thoughts_are_taken_for_no_slow_prefill(backend: Backend) -> None:
    for second in range(50):
        lease = stream_on(backend, float(second))
        lease.answering(second + 0.1)
        lease.first_token(second + 9.0)
        lease.tokens(20)
        lease.complete(second + 10.0, 20, 10_000)
    assert backend.prefill_speed.work_per_s == PRIOR_WORK_PER_S
    assert backend.prefill_speed.samples == 0


def test_those_behind_it_waited_for_it(backend: Backend) -> None:
    """Whenever it began: their first tokens teach the speed, with the work before them."""
    for second in range(0, 2_000, 10):
        thinking, behind = (stream_on(backend, float(second)) for _ in range(2))
        thinking.answering(second + 0.1)
        assert behind.ahead_work == 2 * behind.queued_work
        behind.first_token(second + 4.0)
        behind.complete(second + 4.0)
        thinking.end(second + 5.0)
    work = work_of(10_000, 10_000)
    speed = backend.prefill_speed
    assert 2 * work * speed.work_s + speed.step_s == pytest.approx(4.0, rel=0.02)


def test_after_its_first_token_it_changes_nothing(backend: Backend) -> None:
    lease = stream_on(backend)
    lease.first_token(WHOLE_S)
    sequence = backend.own.sequence
    lease.answering(WHOLE_S)
    assert backend.own.sequence == sequence
    assert not lease.held_up


def test_without_an_engine_or_in_a_batch_that_has_begun_it_changes_nothing(
    backend: Backend,
) -> None:
    plain = Lease(backend, Ask("/", prompt_tokens=100, engine=False), 0.0)
    batch = stream_on(backend, prompts=2)
    batch.first_token(1.0, 0)
    for lease in (plain, batch):
        lease.answering(2.0)
        assert not lease.held_up
    assert backend.queued_prefill_tokens == 5_000
    plain.end(3.0)
    batch.end(3.0)
    assert backend.own.idle


def test_what_a_prompt_held_of_the_room_is_told_once() -> None:
    door = full("a")
    assert door.enter(100).waits
    (lease,) = door.leases.values()
    before = door.changes
    lease.answering(1.0)
    lease.answering(2.0)
    lease.first_token(3.0)
    assert door.changes == before + 1
