"""Rules of other routers, as we read them: what each looks at."""

from random import Random

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.bench.baselines import BASELINES, LlmDSticky, View
from penstock.bench.routing.trace import BLOCK_TOKENS, Arrival
from penstock.bench.sim.engine import Engine
from penstock.bench.sim.profiles import GPUS

WARM = tuple(range(10))
PROMPT = Arrival(0.0, 10 * BLOCK_TOKENS, 100, WARM, "s")
OTHER = Arrival(0.0, 5_000, 100)
FIT = [Backend(str(index), f"http://{index}") for index in range(3)]


def view() -> View:
    return View([Engine(GPUS["8b-1xh100"]) for _ in FIT])


def chosen(rule: str, seen: View, arrival: Arrival = PROMPT) -> set[str]:
    policy = BASELINES[rule](seen)
    seen.arrival = arrival
    return {policy.choose(FIT, Ask("/"), 0.0, Random(seed)).name for seed in range(20)}


@pytest.mark.parametrize("rule", ["llm_d_sticky", "lmetric", "dynamo"])
def test_an_empty_backend_with_the_prefix_is_taken(rule: str) -> None:
    seen = view()
    seen.began(1, PROMPT, seen.sent(1, PROMPT))
    seen.ended(1, PROMPT, 0)
    assert chosen(rule, seen) == {"1"}


def test_what_was_sent_is_given_back() -> None:
    seen = view()
    uncached = seen.sent(1, PROMPT)
    assert (uncached, seen.backends[1].cached_tokens(PROMPT)) == (5_120, 5_119)
    seen.began(1, PROMPT, uncached)
    seen.token(1)
    assert (seen.backends[1].queued_tokens, seen.backends[1].held_tokens) == (0, 5_121)
    seen.ended(1, PROMPT, 1)
    assert (
        vars(seen.backends[1]).items()
        >= {"held_tokens": 0, "requests": 0, "active_tokens": 0}.items()
    )


def test_the_shadow_forgets_what_was_used_longest_ago() -> None:
    seen = view().backends[0]
    seen.use(PROMPT)
    blocks = int(0.8 * 390_000 / BLOCK_TOKENS)
    seen.use(Arrival(0.0, 1, 1, tuple(range(100, 100 + blocks - 5))))
    assert seen.cached_tokens(PROMPT) == 5 * BLOCK_TOKENS


def test_sticky_is_left_when_it_would_wait_too_long() -> None:
    seen = view()
    seen.backends[1].use(PROMPT)
    seen.backends[1].queued_tokens = int(LlmDSticky.T_MAX_S * LlmDSticky.PEAK_TOKENS_PER_S)
    assert chosen("llm_d_sticky", seen) == {"1"}
    seen.backends[1].queued_tokens += 1_000
    assert chosen("llm_d_sticky", seen) == {"0", "2"}


def test_lmetric_weighs_tokens_by_requests() -> None:
    seen = view()
    for index, (queued, requests) in enumerate([(1_000, 9), (6_000, 5), (30_000, 1)]):
        seen.backends[index].queued_tokens = queued
        seen.backends[index].requests = requests
    # (1,000 + 5,000) x 10, (6,000 + 5,000) x 6, (30,000 + 5,000) x 2
    assert chosen("lmetric", seen, OTHER) == {"0"}
    seen.backends[0].requests = 12
    assert chosen("lmetric", seen, OTHER) == {"1"}


def test_the_bound_on_tokens_sends_on_to_the_next() -> None:
    seen = view()
    (home,) = chosen("chwbl_tokens", seen)
    seen.backends[int(home)].held_tokens = 100_000
    (other,) = chosen("chwbl_tokens", seen)
    assert other != home


@pytest.mark.parametrize("rule", ["kv_aware", "oracle"])
def test_these_look_into_the_engine(rule: str) -> None:
    seen = view()
    cache = seen.backends[2].engine.cache
    cache.take(320)
    names = [(block, part) for block in WARM for part in range(32)]
    assert all(cache.know(name) for name in names)
    assert chosen(rule, seen) == {"2"}
