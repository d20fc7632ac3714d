"""A lease from choice to end: what it holds at each moment."""

from random import Random
from typing import Any

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.lease import Lease
from penstock.balancing.outliers.penalties import Cause
from penstock.balancing.speed.compare import compare
from penstock.balancing.speed.estimates import PRIOR_WORK_PER_S, work_of
from tests.unit.balancing.admission.door import full

# What 10,000 tokens take before anything is known.
WHOLE_S = work_of(10_000, 10_000) / PRIOR_WORK_PER_S


def lease_on(backend: Backend, **fields: Any) -> Lease:
    return Lease(backend, Ask("/v1/completions", **fields), 0.0)


def test_the_prompt_is_queued_until_its_first_token(backend: Backend) -> None:
    lease = lease_on(backend, prompt_tokens=100, stream=True)
    assert (backend.queued_prefill_tokens, backend.active_decode_tokens) == (100, 0)
    lease.first_token(0.5)
    lease.tokens(3)
    assert (backend.queued_prefill_tokens, backend.active_decode_tokens) == (0, 103)
    assert (backend.streams, backend.requests_in_flight) == (1, 1)
    lease.end(0.0)
    assert backend.own.idle


def test_each_prompt_of_several_is_released_by_its_own_first_token(backend: Backend) -> None:
    """Three prompts with two choices each: choices 0-1, 2-3, 4-5."""
    lease = lease_on(backend, prompt_tokens=100, prompts=3, choices=2, stream=True)
    for index, queued in ((2, 67), (3, 67), (0, 34), (1, 34), (5, 0), (4, 0)):
        lease.first_token(0.1, index)
        assert backend.queued_prefill_tokens == queued
    assert backend.streams == 1
    assert not lease.prefilling


def test_ending_twice_and_late_events_change_nothing(backend: Backend) -> None:
    lease = lease_on(backend, prompt_tokens=10, stream=True)
    lease.fail(0.0)
    lease.fail(0.0)
    lease.first_token(1.0)
    lease.tokens(5)
    lease.assume_prefilled(0.0)
    assert backend.own.idle
    assert backend.failures_total == 1


def test_a_plain_answer_leaves_prefill_by_the_measured_rate(backend: Backend) -> None:
    """Nothing shows its first token: 10,000 tokens take their time by the prior."""
    lease = lease_on(backend, prompt_tokens=10_000)
    backend.advance(0.99 * WHOLE_S)
    assert backend.queued_prefill_tokens == 10_000
    backend.advance(1.01 * WHOLE_S)
    assert (backend.queued_prefill_tokens, backend.active_decode_tokens) == (0, 10_000)
    lease.end(0.0)
    assert backend.own.idle


def test_an_embedding_is_prefill_until_it_ends(backend: Backend) -> None:
    lease = lease_on(backend, prompt_tokens=10_000, generates=False)
    backend.advance(1e6)
    assert backend.queued_prefill_tokens == 10_000
    lease.end(0.0)
    assert backend.own.idle


def test_the_prefill_rate_is_learnt_from_streams(backend: Backend) -> None:
    for second in range(200):
        lease = Lease(backend, Ask("/", prompt_tokens=2_000, stream=True), float(second))
        lease.first_token(second + 1.0)
        lease.complete(second + 1.0)
    work = work_of(2_000, 2_000)
    assert work * backend.prefill_speed.work_s + backend.prefill_speed.step_s == pytest.approx(
        1.0, rel=0.02
    )


def test_every_change_moves_the_sequence(backend: Backend) -> None:
    lease = lease_on(backend, prompt_tokens=10, stream=True)
    seen = [backend.own.sequence]
    lease.first_token(1.0)
    seen.append(backend.own.sequence)
    lease.tokens(1)
    seen.append(backend.own.sequence)
    lease.end(0.0)
    seen.append(backend.own.sequence)
    assert seen == sorted(set(seen))


def test_what_waits_shrinks_as_the_head_is_prefilled(backend: Backend) -> None:
    """Two prompts of 10,000 tokens: only the older is worked on."""
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


def test_plain_answers_pass_one_after_the_other(backend: Backend) -> None:
    for _ in range(3):
        lease_on(backend, prompt_tokens=10_000)
    for prefills, queued in ((0.9, 30_000), (1.1, 20_000), (2.1, 10_000), (3.1, 0)):
        backend.advance(prefills * WHOLE_S)
        assert backend.queued_prefill_tokens == queued


def test_what_no_engine_works_on_is_not_waited_for_and_teaches_no_speed(backend: Backend) -> None:
    """Such answers come in milliseconds, whatever the body says of streams and tokens."""
    for _ in range(100):
        lease = lease_on(backend, prompt_tokens=50_000, stream=True, engine=False, generates=False)
        assert backend.wait_s(0.0) == 0.0
        lease.first_token(0.001)
        lease.complete(0.001, 50)
    assert backend.prefill_speed.samples == 0
    assert backend.own.idle


@pytest.mark.parametrize("prompts", [1, 64])
def test_embeddings_teach_the_prefill_speed(backend: Backend, prompts: int) -> None:
    rng = Random(1)
    for _ in range(100):
        tokens = rng.randint(1_000, 50_000)
        lease = lease_on(backend, prompt_tokens=tokens, prompts=prompts, generates=False)
        seconds = 0.01 + work_of(tokens, tokens / prompts, prompts) / 50_000
        lease.first_token(seconds)
        lease.complete(seconds)
    assert backend.prefill_speed.work_per_s == pytest.approx(50_000, rel=0.05)


def test_a_refusal_and_a_failure_teach_nothing(backend: Backend) -> None:
    """A refusal is passed without a first token, streamed or not."""
    for fields in ({"stream": True}, {}, {"generates": False}):
        lease_on(backend, prompt_tokens=50_000, **fields).complete(0.001, 50)
    for _ in range(8):
        lease_on(backend, prompt_tokens=1_000, stream=True).fail(60.0)
    assert backend.prefill_speed.samples == 0
    assert not backend.prefill_speed.recent.enough
    assert backend.decode_speed.weight == 0.0


def test_a_batch_teaches_when_all_its_prompts_have_begun(backend: Backend) -> None:
    """64 prompts are prefilled one after the other; the first token of the first comes soon."""
    for _ in range(50):
        lease = lease_on(backend, prompt_tokens=64_000, prompts=64, stream=True)
        work_s = lease.queued_work / 46_000
        for index in range(64):
            lease.first_token(0.01 + (index + 1) / 64 * work_s, index)
        lease.complete(10.0)
    assert backend.prefill_speed.work_per_s == pytest.approx(46_000, rel=0.1)


def test_nearly_all_decoding_teaches_nothing_of_prefill(backend: Backend) -> None:
    """Plain answers of 400 tokens and a prompt of 100; steps take twice as long as by the prior."""
    for _ in range(300):
        lease = lease_on(backend, prompt_tokens=100)
        lease.first_token(16.0)
        lease.complete(16.0, 400)
    assert backend.prefill_speed.work_per_s == pytest.approx(PRIOR_WORK_PER_S, rel=0.3)
    assert backend.decode_speed.step_s == pytest.approx(0.040, rel=0.05)


def test_plain_answers_teach_both_speeds_where_both_show() -> None:
    backend, rng = Backend("a", "http://127.0.0.1:1"), Random(1)
    for _ in range(400):
        prompt, answer = rng.choice((200, 5_000, 20_000)), rng.randint(20, 400)
        lease = lease_on(backend, prompt_tokens=prompt)
        seconds = 0.02 + work_of(prompt, prompt) / 5_000 + 0.010 * answer
        backend.advance(seconds)
        lease.first_token(seconds)
        lease.complete(seconds, answer)
    assert backend.prefill_speed.work_per_s == pytest.approx(5_000, rel=0.1)
    assert backend.decode_speed.step_s == pytest.approx(0.010, rel=0.1)


def test_who_has_its_first_token_shows_that_those_before_it_have_theirs(backend: Backend) -> None:
    """The measured speed is far too low; what comes after a plain answer tells it."""
    plain = [lease_on(backend, prompt_tokens=10_000) for _ in range(3)]
    seen = lease_on(backend, prompt_tokens=10_000, stream=True)
    later = lease_on(backend, prompt_tokens=10_000)
    seen.first_token(0.1)
    assert backend.queued_prefill_tokens == 10_000
    assert later.prefilling
    for lease in (*plain, seen, later):
        lease.end(1.0)
    assert backend.own.idle


def streamed(backend: Backend, tokens: int, seconds: float, told: int = 0) -> Lease:
    lease = lease_on(backend, prompt_tokens=10, stream=True)
    lease.first_token(0.02)
    lease.tokens(tokens)
    lease.complete(0.02 + seconds, told)
    return lease


def test_a_client_that_reads_slowly_does_not_make_its_backend_slow(backend: Backend) -> None:
    for _ in range(20):
        streamed(backend, 101, 1.0)
    before = backend.decode_speed.step_s
    for _ in range(20):
        lease = lease_on(backend, prompt_tokens=10, stream=True)
        lease.first_token(0.02)
        lease.tokens(101)
        lease.held_up = True
        lease.complete(60.0)
    assert backend.decode_speed.step_s == before


@pytest.mark.parametrize("told", [10**3, 10**9])
def test_tokens_that_nobody_saw_make_no_backend_fast_beyond_belief(told: int) -> None:
    streams, plain = Backend("a", "http://a"), Backend("b", "http://b")
    for _ in range(50):
        streamed(streams, 50, 1.0, told)
        lease = lease_on(plain, prompt_tokens=10, max_tokens=50)
        lease.first_token(1.0)
        lease.complete(1.0, told)
    assert streams.decode_speed.step_s >= 1.0 / (16 * 50)
    assert plain.decode_speed.step_s == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("stream", [True, False])
def test_who_gives_up_on_a_slow_backend_shows_that_it_is_slow(stream: bool) -> None:
    """Nobody waits for a first token there."""
    slow, peer = Backend("a", "http://127.0.0.1:1"), Backend("b", "http://127.0.0.1:1")
    for _ in range(4):
        lease_on(slow, prompt_tokens=1_000, stream=stream, max_tokens=10).end(5.0)
        if stream:
            streamed(peer, 10, 0.2)
        else:
            lease = lease_on(peer, prompt_tokens=1_000, max_tokens=10)
            lease.first_token(0.3)
            lease.complete(0.3, 10)
    assert set(compare([slow, peer], 0.1, 5.0).apart) == {slow}


def test_who_leaves_a_slow_stream_shows_that_it_is_slow(backend: Backend) -> None:
    for _ in range(4):
        lease = lease_on(backend, prompt_tokens=1_000, stream=True)
        lease.first_token(0.1)
        lease.tokens(50)
        lease.end(10.0)
    assert backend.decode_speed.recent.quick > 5.0


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.05])
def test_who_leaves_early_shows_nothing(backend: Backend, seconds: float) -> None:
    for _ in range(8):
        lease_on(backend, prompt_tokens=1_000, stream=True).end(seconds)
    for _ in range(8):
        lease = lease_on(backend, prompt_tokens=1_000, stream=True)
        lease.first_token(0.1)
        lease.end(9.0)  # no tokens to tell by
    assert len(set(backend.prefill_speed.recent._ratios)) == 1  # of the eight first tokens
    assert backend.decode_speed.weight == 0.0


@pytest.mark.parametrize("stream", [True, False])
def test_what_a_client_may_aim_teaches_no_speed(stream: bool) -> None:
    """A client that may choose where its slow requests go must not make a backend look slow."""
    aimed, *others = fleet = [Backend(name, "http://127.0.0.1:1") for name in "abcd"]
    for number in range(64):
        client = f"{number % 6}"
        fields: dict[str, Any] = {"prompt_tokens": 1_000, "stream": stream, "client": client}
        fields["max_tokens"] = 10
        for backend in others:
            lease = lease_on(backend, **fields)
            lease.first_token(0.05 if stream else 0.3)
            lease.tokens(10 if stream else 0)
            lease.complete(0.3, 10)
        lease = Lease(aimed, Ask("/", **fields), 0.0, aimed=True)
        lease.first_token(5.0)
        lease.tokens(10 if stream else 0)
        if number % 2:
            lease.complete(9.0, 10)
        else:
            lease.end(9.0)
        Lease(aimed, Ask("/", **fields), 0.0, aimed=True).end(9.0)
    assert not aimed.prefill_speed.recent.count
    assert not aimed.decode_speed.recent.count
    assert aimed not in compare(fleet, 0.1, 5.0).apart


@pytest.mark.parametrize(
    ("clients", "apart"), [("aaaaaa", 0), ("aaabbb", 3), ("ababab", 3), ("aaaaab", 1), ("", 0)]
)
def test_failures_that_one_client_meets_alone_are_told_from_those_of_several(
    clients: str, apart: int
) -> None:
    backend = Backend("a", "http://127.0.0.1:1")
    for client in clients:
        lease_on(backend, client=client).fail(1.0)
    assert (backend.failures_total, backend.failed_for.others) == (len(clients), apart)
    assert (backend.requests_total, backend.ended_for.others) == (len(clients), apart)


def test_whom_what_no_engine_works_on_and_what_no_request_caused_count_for(
    backend: Backend,
) -> None:
    for client, engine in (("a", True), ("b", False), ("b", False)):
        lease_on(backend, client=client, engine=engine).end(1.0)
    assert (backend.ended_for.count, backend.ended_for.others) == (1, 0)
    for _ in range(3):
        lease_on(backend, client="a").fail(1.0, cause=Cause.NO_REQUEST)
    assert backend.failed_for.others == 3


# A stream that has begun without a token ---------------------------------------------------


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
