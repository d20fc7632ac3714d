"""What answers and metrics tell of a cache together, where only some answers tell it."""

from random import Random

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.engine_report import EngineReport
from penstock.balancing.lease import Lease

CHAT = Ask(
    "/v1/chat/completions",
    prompt_tokens=16_000,
    stream=True,
    blocks=tuple(range(100)),
    block_tokens=160.0,
    client="chat",
)
# It goes on from a stored response: next to nothing of its prompt is seen here.
RESPONSE = Ask("/v1/responses", prompt_tokens=50, stream=True, client="responses")
GROWING = CHAT.changed(path="/v1/responses", client="responses", blocks=tuple(range(500, 600)))


def report(at_s: float, hits: int) -> EngineReport:
    return EngineReport(at_s, prefix_queries_tokens=10**9, prefix_hits_tokens=hits)


def answered(backend: Backend, ask: Ask, prompt_tokens: int, found: int | None) -> None:
    lease = Lease(backend, ask, 0.0)
    lease.first_token(1.0)
    lease.settle(prompt_tokens, found)
    lease.complete(2.0, 1, prompt_tokens)


def test_nothing_is_expected_of_an_engine_without_prefix_caching() -> None:
    backend = Backend("a", "")
    for number, keeps in enumerate((True, False, True)):
        backend.take(EngineReport(number, kv_tokens=400_000, keeps_prefixes=keeps))
        answered(backend, CHAT, 16_000, None)
        assert (backend.cache.cached_tokens(CHAT) > 0) is keeps


@pytest.mark.parametrize("ask", [RESPONSE, GROWING])
def test_what_answers_told_was_found_was_not_found_of_others(ask: Ask) -> None:
    """A chat's prompts are never found, and more was cached of the other's than is known here."""
    backend = Backend("a", "")
    hits = 0
    backend.take(report(0.0, hits))
    for number in range(1, 200):
        answered(backend, CHAT, 16_000, None)
        answered(backend, ask, 40_000, 36_000)
        hits += 36_000
        backend.take(report(2.0 * number, hits))
    assert backend.cache.cached_tokens(CHAT) < 4_000


@pytest.mark.parametrize("late", [False, True])
def test_a_client_that_leaves_before_its_answer_tells_takes_no_hits_of_others(late: bool) -> None:
    """Its prompt is expected to be found, and the engine has it not. All of a chat's are found."""
    backend = Backend("a", "")
    hits = 15_999
    backend.take(report(0.0, 0))
    answered(backend, CHAT, 16_000, None)
    answered(backend, GROWING, 16_000, 15_999)
    backend.take(report(1.0, hits))
    for number in range(1, 200):
        answered(backend, CHAT, 16_000, None)
        lease = Lease(backend, GROWING, 0.0)
        lease.first_token(1.0)
        hits += 15_999
        if not late:
            lease.end(1.1)
        backend.take(report(2.0 * number, hits))
        if late:
            lease.end(1.1)
    assert backend.cache.cached_tokens(CHAT) > 6_000  # the metrics do not say whose hits they are
    assert backend.cache.cached_tokens(GROWING) < 12_000


@pytest.mark.parametrize("late", [False, True])
def test_what_is_never_found_is_not_believed_of_a_client_that_leaves(late: bool) -> None:
    """At once, or after the next report of the metrics."""
    backend = Backend("a", "")
    backend.take(report(0.0, 0))
    answered(backend, GROWING, 16_000, 15_999)
    backend.take(report(1.0, 15_999))
    for number in range(1, 100):
        lease = Lease(backend, GROWING, 0.0)
        lease.first_token(1.0)
        if late:
            backend.take(report(2.0 * number, 15_999))
        lease.end(1.1)
        backend.take(report(2.0 * number + 1.0, 15_999))
    assert backend.cache.cached_tokens(GROWING) < 4_000


def test_hits_that_nobody_expected_take_none_of_a_client_that_stops_half_its_streams() -> None:
    """Twice as much is found as is known here, and its answers tell so a report later."""
    backend = Backend("a", "")
    hits = 15_000
    backend.take(report(0.0, 0))
    answered(backend, GROWING, 40_000, 15_000)
    backend.take(report(1.0, hits))
    for number in range(1, 100):
        whole, stopped = Lease(backend, GROWING, 0.0), Lease(backend, GROWING, 0.0)
        whole.first_token(1.0)
        stopped.first_token(1.0)
        hits += 60_000
        backend.take(report(3.0 * number, hits))
        whole.settle(40_000, 30_000)
        whole.end(2.0)
        backend.take(report(3.0 * number + 1.0, hits))
        stopped.end(2.1)
        backend.take(report(3.0 * number + 2.0, hits))
    assert backend.cache.cached_tokens(GROWING) == 15_999


def test_what_is_found_again_is_believed_of_a_client_that_never_lets_its_answers_tell() -> None:
    """Its prompts were gone from the cache for a time."""
    backend = Backend("a", "")
    hits = 15_999
    backend.take(report(0.0, 0))
    answered(backend, GROWING, 16_000, 15_999)
    backend.take(report(1.0, hits))
    for number in range(1, 300):
        lease = Lease(backend, GROWING, 0.0)
        lease.first_token(1.0)
        hits += 15_999 if number > 50 else 0
        backend.take(report(2.0 * number, hits))
        lease.end(1.1)
        if number == 50:
            assert backend.cache.cached_tokens(GROWING) < 8_000
    assert backend.cache.cached_tokens(GROWING) > 12_000


def test_the_first_report_takes_nothing_of_answers_under_way() -> None:
    """There is none before it to compare with."""
    backend = Backend("a", "")
    answered(backend, GROWING, 16_000, 15_999)
    leases = [Lease(backend, GROWING, 0.0) for _ in range(20)]
    for lease in leases:
        lease.first_token(1.0)
    backend.take(report(2.0, 0))
    for lease in leases:
        lease.end(2.1)
    assert backend.cache.cached_tokens(GROWING) == 15_999


def test_hits_that_nobody_took_are_not_taken_from_others_when_an_answer_tells_them() -> None:
    """All of a chat's prompts are found. A response tells a report later what was found."""
    backend = Backend("a", "")
    hits = 0
    backend.take(report(0.0, hits))
    answered(backend, CHAT, 16_000, None)
    for number in range(1, 100):
        answered(backend, CHAT, 16_000, None)
        lease = Lease(backend, RESPONSE, 0.0)
        lease.first_token(1.0)
        hits += 15_999 + 36_000
        backend.take(report(4.0 * number, hits))
        answered(backend, CHAT, 16_000, None)
        lease.settle(40_000, 36_000)
        lease.complete(2.0, 1, 40_000)
        hits += 15_999
        backend.take(report(4.0 * number + 2.0, hits))
    assert backend.cache.cached_tokens(CHAT) == 15_999


def test_the_first_answers_that_tell_are_not_counted_twice() -> None:
    """Nobody knew that they would. All prompts are found."""
    backend = Backend("a", "")
    answered(backend, CHAT, 16_000, None)
    answered(backend, GROWING, 16_000, None)
    backend.take(report(1.0, 0))
    leases = [Lease(backend, GROWING, 0.0) for _ in range(10)]
    for lease in leases:
        lease.first_token(1.0)
    for lease in leases:
        lease.settle(16_000, 15_999)
        lease.end(2.0)
    answered(backend, CHAT, 16_000, None)
    backend.take(report(2.0, 11 * 15_999))
    assert backend.cache.cached_tokens(CHAT) == 15_999
    assert backend.cache.cached_tokens(GROWING) == 15_999


def test_half_found_is_half_of_those_that_tell_and_of_the_others() -> None:
    """Of the responses all are stopped. Some hits are counted before the prompt's first token."""
    rng = Random(1)
    backend = Backend("a", "")
    answered(backend, CHAT, 16_000, None)
    answered(backend, GROWING, 16_000, 0)
    backend.take(report(0.0, 0))
    hits = 0
    waiting: list[Lease] = []
    running: list[Lease] = []
    for number in range(1, 600):
        for ask in (CHAT, GROWING):
            chosen = rng.choice([0, 1, 2])
            waiting += [Lease(backend, ask, 0.0) for _ in range(chosen)]
            hits += 8_000 * chosen
        rng.shuffle(waiting)
        for _ in range(len(waiting) // 2):
            lease = waiting.pop()
            lease.first_token(1.0)
            if lease.ask is GROWING:
                running.append(lease)
            else:
                lease.complete(2.0, 1, 16_000)
        while len(running) > 15:
            running.pop(rng.randrange(15)).end(2.0)
        backend.take(report(2.0 * number, hits))
    assert 6_800 < backend.cache.cached_tokens(CHAT) < 9_200
    assert 6_800 < backend.cache.cached_tokens(GROWING) < 9_200
