"""What was estimated and never told: it displaces little, and teaches no speed."""

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.lease import Lease
from penstock.balancing.prefix_index import BLOCK_TOKENS
from penstock.balancing.unconfirmed_blocks import UnconfirmedBlocks

CAPACITY = 1_600


def backend() -> Backend:
    made = Backend("a", "http://a")
    made.cache.index.capacity = CAPACITY
    return made


def prompt(number: int, client: str = "a", size: int = 50) -> Ask:
    blocks = tuple(range(number * 1_000, number * 1_000 + size))
    return Ask(
        "/v1/completions",
        prompt_tokens=size * BLOCK_TOKENS,
        blocks=blocks,
        block_tokens=float(BLOCK_TOKENS),
        stream=True,
        client=client,
    )


def given_up(backend: Backend, ask: Ask) -> None:
    lease = Lease(backend, ask, 0.0)
    lease.first_token(0.02)
    lease.end(0.03)


def test_a_client_that_gives_up_fills_a_share_and_no_more() -> None:
    to = backend()
    victim = prompt(0, "victim", 800)
    lease = Lease(to, victim, 0.0)
    lease.first_token(1.0)
    lease.complete(2.0, 1, victim.prompt_tokens)
    for number in range(1, 200):
        given_up(to, prompt(number))
    assert len(to.cache.index) == 800 + CAPACITY // 16
    for number in range(200, 800):
        given_up(to, prompt(number, f"client {number}"))
    assert len(to.cache.index) == 800 + CAPACITY // 4
    assert to.cache.cached_tokens(victim) == victim.prompt_tokens - 1


def test_what_is_told_makes_room_for_more() -> None:
    to = backend()
    for number in range(10):
        ask = prompt(number)
        lease = Lease(to, ask, 0.0)
        lease.first_token(1.0)
        assert to.cache.held(ask) == 50
        lease.complete(2.0, 1, ask.prompt_tokens)
    assert len(to.cache.index) == 500


def test_what_waits_for_its_answer_counts_meanwhile() -> None:
    to = backend()
    asks = [prompt(number) for number in range(10)]
    leases = [Lease(to, ask, 0.0) for ask in asks]
    for lease in leases:
        lease.first_token(1.0)
    assert len(to.cache.index) == 100
    assert all(to.cache.held(ask) == 50 for ask in asks)
    for lease, ask in zip(leases, asks, strict=True):
        lease.complete(2.0, 1, ask.prompt_tokens)
    assert len(to.cache.index) == 500
    assert not len(to.cache.waiting)


def test_a_turn_begins_anew() -> None:
    to = backend()
    unconfirmed = UnconfirmedBlocks(to.cache.index)
    assert unconfirmed.fits("a", 100)
    unconfirmed.add("a", 100)
    assert not unconfirmed.fits("a", 1)
    assert unconfirmed.fits("b", 1)
    to.cache.index.clear()
    unconfirmed.confirm("a", 100, 0)
    assert unconfirmed.fits("a", 100)


def test_speed_is_learnt_from_prompts_that_were_counted() -> None:
    to = backend()
    for number in range(50):
        given_up(to, prompt(number))
    for number in range(50):
        lease = Lease(to, prompt(number), 0.0)
        lease.first_token(0.02)
        lease.complete(0.1, 5, 10)
    assert to.prefill_speed.samples == 0
    lease = Lease(to, prompt(99), 0.0)
    lease.first_token(0.02)
    assert to.prefill_speed.samples == 0
    lease.complete(0.1, 5, prompt(99).prompt_tokens)
    assert to.prefill_speed.samples == 1


def test_what_no_engine_is_as_quick_for_waits_to_be_told() -> None:
    """8,000 tokens in 20 ms: they are in its cache, or no text to it."""
    to = backend()
    ask = prompt(1)
    given_up(to, ask)
    assert to.cache.held(ask) == 0
    assert to.prefilled_work < 2_000
    lease = Lease(to, ask, 0.0)
    lease.first_token(0.02)
    assert to.cache.held(ask) == 50  # beside the index, for others of the same text
    lease.complete(2.0, 1, ask.prompt_tokens)
    assert to.cache.held(ask) == 50
    to = backend()
    lease = Lease(to, ask, 0.0)
    lease.first_token(0.4)
    lease.end(0.5)
    assert to.cache.held(ask) == 50
    assert to.prefilled_work > 8_000
