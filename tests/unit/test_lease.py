"""A lease from choice to end: what it holds at each moment."""

import pytest

from balancing.ask import Ask
from balancing.backend import Backend
from balancing.lease import Lease
from balancing.prefill_speed import PRIOR_WORK_PER_S, work_of

# What 10,000 tokens take before anything is known.
WHOLE_S = work_of(10_000, 10_000) / PRIOR_WORK_PER_S


def lease_on(backend: Backend, **fields: object) -> Lease:
    return Lease(backend, Ask("/v1/completions", **fields), 0.0)  # type: ignore[arg-type]


def test_the_prompt_is_queued_until_its_first_token() -> None:
    backend = Backend("a", "http://127.0.0.1:1")
    lease = lease_on(backend, prompt_tokens=100, stream=True)
    assert (backend.queued_prefill_tokens, backend.active_decode_tokens) == (100, 0)
    lease.first_token(0.5)
    lease.tokens(3)
    assert (backend.queued_prefill_tokens, backend.active_decode_tokens) == (0, 103)
    assert (backend.streams, backend.requests_in_flight) == (1, 1)
    lease.end(0.0)
    assert backend.own.idle


def test_each_prompt_of_several_is_released_by_its_own_first_token() -> None:
    """Three prompts with two choices each: choices 0-1, 2-3, 4-5."""
    backend = Backend("a", "http://127.0.0.1:1")
    lease = lease_on(backend, prompt_tokens=100, prompts=3, choices=2, stream=True)
    for index, queued in ((2, 67), (3, 67), (0, 34), (1, 34), (5, 0), (4, 0)):
        lease.first_token(0.1, index)
        assert backend.queued_prefill_tokens == queued
    assert backend.streams == 1
    assert not lease.prefilling


def test_ending_twice_and_late_events_change_nothing() -> None:
    backend = Backend("a", "http://127.0.0.1:1")
    lease = lease_on(backend, prompt_tokens=10, stream=True)
    lease.fail(0.0)
    lease.fail(0.0)
    lease.first_token(1.0)
    lease.tokens(5)
    lease.assume_prefilled(0.0)
    assert backend.own.idle
    assert backend.failures_total == 1


def test_a_plain_answer_leaves_prefill_by_the_measured_rate() -> None:
    """Nothing shows its first token: 10,000 tokens take their time by the prior."""
    backend = Backend("a", "http://127.0.0.1:1")
    lease = lease_on(backend, prompt_tokens=10_000)
    backend.advance(0.99 * WHOLE_S)
    assert backend.queued_prefill_tokens == 10_000
    backend.advance(1.01 * WHOLE_S)
    assert (backend.queued_prefill_tokens, backend.active_decode_tokens) == (0, 10_000)
    lease.end(0.0)
    assert backend.own.idle


def test_an_embedding_is_prefill_until_it_ends() -> None:
    backend = Backend("a", "http://127.0.0.1:1")
    lease = lease_on(backend, prompt_tokens=10_000, generates=False)
    backend.advance(1e6)
    assert backend.queued_prefill_tokens == 10_000
    lease.end(0.0)
    assert backend.own.idle


def test_the_prefill_rate_is_learnt_from_streams() -> None:
    backend = Backend("a", "http://127.0.0.1:1")
    for second in range(200):
        lease = Lease(backend, Ask("/", prompt_tokens=2_000, stream=True), float(second))
        lease.first_token(second + 1.0)
        lease.end(0.0)
    work = work_of(2_000, 2_000)
    assert work * backend.prefill_speed.work_s + backend.prefill_speed.step_s == pytest.approx(
        1.0, rel=0.02
    )


def test_every_change_moves_the_sequence() -> None:
    backend = Backend("a", "http://127.0.0.1:1")
    lease = lease_on(backend, prompt_tokens=10, stream=True)
    seen = [backend.own.sequence]
    lease.first_token(1.0)
    seen.append(backend.own.sequence)
    lease.tokens(1)
    seen.append(backend.own.sequence)
    lease.end(0.0)
    seen.append(backend.own.sequence)
    assert seen == sorted(set(seen))


def test_what_waits_shrinks_as_the_head_is_prefilled() -> None:
    """Two prompts of 10,000 tokens: only the older is worked on."""
    backend = Backend("a", "http://127.0.0.1:1")
    first = lease_on(backend, prompt_tokens=10_000, stream=True)
    second = lease_on(backend, prompt_tokens=10_000, stream=True)
    assert backend.waiting_tokens(0.0) == 20_000
    assert backend.waiting_tokens(0.4 * WHOLE_S) == pytest.approx(16_000, rel=1e-4)
    assert backend.waiting_tokens(9.0) == 10_000  # late, but not more than all of it
    first.first_token(WHOLE_S)
    assert backend.waiting_tokens(WHOLE_S) == 10_000
    assert backend.waiting_tokens(1.5 * WHOLE_S) == pytest.approx(5_000, rel=0.2)
    second.end(1.5 * WHOLE_S)
    assert backend.waiting_tokens(2.0) == 0


def test_plain_answers_pass_one_after_the_other() -> None:
    backend = Backend("a", "http://127.0.0.1:1")
    for _ in range(3):
        lease_on(backend, prompt_tokens=10_000)
    for prefills, queued in ((0.9, 30_000), (1.1, 20_000), (2.1, 10_000), (3.1, 0)):
        backend.advance(prefills * WHOLE_S)
        assert backend.queued_prefill_tokens == queued


@pytest.mark.parametrize("fields", [{"generates": False}, {"engine": False, "generates": False}])
def test_what_no_engine_generates_teaches_no_speed(fields: dict[str, bool]) -> None:
    """Such answers come in milliseconds, whatever the body says of streams and tokens."""
    backend = Backend("a", "http://127.0.0.1:1")
    for _ in range(100):
        lease = lease_on(backend, prompt_tokens=50_000, stream=True, **fields)
        lease.first_token(0.001)
        lease.complete(0.001, 50)
    assert backend.prefill_speed.samples == 0
    assert backend.own.idle


def test_without_an_engine_there_is_no_prefill_to_wait_for() -> None:
    backend = Backend("a", "http://127.0.0.1:1")
    lease = lease_on(backend, prompt_tokens=50_000, engine=False, generates=False)
    assert backend.wait_s(0.0) == 0.0
    lease.end(1.0)
    assert backend.own.idle
