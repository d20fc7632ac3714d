"""What a request leaves in a backend's shadow cache, and when: what its engine computed."""

from collections.abc import Callable

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.engine_report import EngineReport
from penstock.balancing.lease import Lease
from penstock.balancing.prefix_cache.cache import COMPARED_MAX

CAPACITY = 1_000


def blocks(name: int, count: int) -> tuple[int, ...]:
    return tuple(name * 1_000_000 + each for each in range(count))


def ask_of(text: tuple[int, ...], tokens: int = 0) -> Ask:
    tokens = tokens or 160 * len(text) + 1
    each = tokens / len(text)
    return Ask("/", prompt_tokens=tokens, stream=True, blocks=text, block_tokens=each)


VICTIM = ask_of(blocks(1, 50))


@pytest.fixture
def backend() -> Backend:
    """One whose cache holds the victim's conversation."""
    backend = Backend("a", "")
    backend.cache.index.resize(CAPACITY)
    serve(backend, VICTIM)
    return backend


def serve(backend: Backend, ask: Ask, prompt_tokens: int = 0) -> None:
    lease = Lease(backend, ask, 0.0)
    lease.first_token(1.0)
    lease.complete(2.0, 1, prompt_tokens)


def held(backend: Backend, ask: Ask = VICTIM) -> int:
    return backend.cache.held(ask)


@pytest.mark.parametrize("ends", [Lease.complete, Lease.fail, Lease.end])
def test_a_prompt_without_a_first_token_displaces_nothing(
    backend: Backend, ends: Callable[[Lease, float], None]
) -> None:
    """It is refused, it fails or its client leaves."""
    for number in range(100):
        ends(Lease(backend, ask_of(blocks(2 + number, 2_000)), 0.0), 1.0)
    assert held(backend) == 50
    assert len(backend.cache.index) == 50
    assert len(backend.cache.waiting) == 0


def test_what_waits_counts_for_choices(backend: Backend) -> None:
    """A burst of equal prompts, or of such that begin alike, is one backend's."""
    first = ask_of(blocks(2, 100))
    lease = Lease(backend, first, 0.0)
    assert held(backend, first) == 100
    assert held(backend, ask_of(blocks(2, 70) + blocks(3, 40))) == 70
    assert Lease(backend, first, 0.0).cached_tokens == first.prompt_tokens - 1
    lease.end(1.0)


def test_one_that_goes_on_where_the_cache_ends_finds_what_waits_there(backend: Backend) -> None:
    longer = ask_of(blocks(1, 80))
    lease = Lease(backend, longer, 0.0)
    assert held(backend, longer) == 80
    lease.end(1.0)
    assert held(backend, longer) == 50


def test_of_many_that_wait_alike_a_few_are_compared(backend: Backend) -> None:
    for number in range(1_000):
        Lease(backend, ask_of(blocks(2, 10) + blocks(3 + number, 10)), 0.0)
    last, early = (ask_of(blocks(2, 10) + blocks(3 + number, 10)) for number in (999, 5))
    assert (held(backend, last), held(backend, early)) == (20, 10)
    assert COMPARED_MAX < 990


def test_what_was_computed_stays_when_the_client_leaves(backend: Backend) -> None:
    ask = ask_of(blocks(2, 40))
    lease = Lease(backend, ask, 0.0)
    lease.first_token(1.0)
    lease.end(2.0)
    assert held(backend, ask) == 40


def test_text_of_few_tokens_fills_little(backend: Backend) -> None:
    """Blanks: a thousand blocks of eight tokens each, by the estimate; or only in truth."""
    for number in range(15):
        serve(backend, ask_of(blocks(2 + number, 1_000), tokens=8_000), prompt_tokens=8_000)
    assert held(backend) == 50
    for number in range(15):
        serve(backend, ask_of(blocks(100 + number, 60)), prompt_tokens=480)
    assert held(backend) == 50
    assert len(backend.cache.index) < 2 * 4 * CAPACITY


def test_what_is_served_displaces_as_much_as_it_does_in_the_engine(backend: Backend) -> None:
    for number in range(4):
        ask = ask_of(blocks(2 + number, 900))
        serve(backend, ask, prompt_tokens=ask.prompt_tokens)
    assert held(backend) == 0


def test_an_engine_that_does_not_look_is_not_expected_to_find(backend: Backend) -> None:
    lease = Lease(backend, VICTIM.changed(reads_cache=False), 0.0)
    assert lease.cached_tokens == backend.cache.cached_tokens(lease.ask) == 0
    lease.end(1.0)


@pytest.mark.parametrize("keeps", [True, False])
def test_nothing_is_expected_of_an_engine_that_keeps_no_prefixes(
    backend: Backend, keeps: bool
) -> None:
    backend.take(EngineReport(3.0, kv_tokens=400_000, keeps_prefixes=keeps))
    serve(backend, VICTIM)
    assert (backend.cache.cached_tokens(VICTIM) > 0) is keeps


def test_what_the_engine_had_in_another_spelling_takes_little_room(backend: Backend) -> None:
    """Also if its blocks went in before the answer told that the engine had them."""
    for number in range(90):
        ask = ask_of(blocks(2 + number, 60))
        lease = Lease(backend, ask, 0.0)
        lease.first_token(2.0)
        lease.settle(ask.prompt_tokens, ask.prompt_tokens)
        lease.complete(3.0, 1, ask.prompt_tokens)
    assert held(backend) == 50
    assert len(backend.cache.index) < 2 * 4 * CAPACITY


def test_a_first_token_that_comes_too_soon_shows_that_the_engine_had_the_prompt(
    backend: Backend,
) -> None:
    for number in range(6):
        ask = ask_of(blocks(2 + number, 900))
        lease = Lease(backend, ask, 0.0)
        lease.first_token(0.01)
        lease.complete(0.1, 1, ask.prompt_tokens)
    assert held(backend) == 50
