"""A backend that ends answers much sooner than its peers attracts nothing; nobody can feign it."""

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend, State
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.gate import Gate
from penstock.balancing.lease import Lease
from penstock.balancing.output_length import OutputLength
from penstock.balancing.policies import POLICIES

Tokens = Callable[[str, Backend, Random], int]


def fleet() -> Gate:
    backends = tuple(Backend(f"b{i}", "http://127.0.0.1:1") for i in range(4))
    for backend in backends:
        backend.state = State.READY
    pool = Pool("default", backends, POLICIES["token_cost"](backends))
    return Gate(lambda: Fleet((pool,)), Random(3))


def run(tokens_of: Tokens, who: Callable[[int], str], requests: int = 1_000) -> Counter[str]:
    """20 requests a second, 20 ms for each token; where they went, and who was told of."""
    gate, lengths, rng = fleet(), OutputLength(), Random(5)
    open_: list[tuple[float, int, Lease, int]] = []
    went: Counter[str] = Counter()
    for number in range(requests):
        now_s = number / 20
        open_.sort(key=lambda each: each[:2])
        while open_ and open_[0][0] <= now_s:
            done_s, _, lease, tokens = open_.pop(0)
            if gate.brief(lease, tokens, done_s):
                went["told of " + lease.backend.name] += 1
            lease.complete(done_s, tokens)
            lengths.observe(lease.ask.client, None, "/", None, tokens)
        client = who(number)
        expected = lengths.expect(client, None, "/", None)
        ask = Ask("/", prompt_tokens=200, stream=True, client=client, output_tokens=expected)
        lease = gate.choose(ask, now_s)
        went[lease.backend.name] += 1
        tokens = tokens_of(client, lease.backend, rng)
        lease.first_token(now_s + 0.02)
        lease.tokens(tokens)
        open_.append((now_s + 0.02 * tokens, number, lease, tokens))
    return went


def usual(rng: Random) -> int:
    return max(1, round(rng.lognormvariate(4.0, 0.8)))


@pytest.mark.parametrize("clients", [1, 20])
@pytest.mark.parametrize("cut_at", [1, 8])
def test_a_backend_that_ends_answers_at_once_attracts_nothing(cut_at: int, clients: int) -> None:
    went = run(
        lambda _, backend, rng: cut_at if backend.name == "b3" else usual(rng),
        lambda number: f"client {number % clients}",
    )
    assert went["b3"] < 150
    assert (went["told of b3"] > 0) is (clients > 1)  # one client may have caused it
    assert not any(went[f"told of b{number}"] for number in range(3))


def test_answers_that_are_brief_everywhere_speak_against_nobody() -> None:
    went = run(
        lambda client, _, rng: 1 if client == "brief" else usual(rng),
        lambda number: "brief" if number % 2 else f"client {number % 20}",
    )
    assert min(went[f"b{number}"] for number in range(4)) > 150
    assert not any(name.startswith("told") for name in went)


def test_what_went_to_its_cached_text_says_nothing() -> None:
    """One kind of question has short answers, and all of them go where its text is."""
    gate = fleet()
    for number in range(100):
        ask = Ask("/", prompt_tokens=200, client=f"{number % 9}", output_tokens=300.0)
        lease = gate.choose(ask, float(number))
        lease.cached_tokens = 150
        assert not gate.brief(lease, 1, float(number))
        lease.end(float(number))
