"""The cost in seconds: what draws a request to a place and what keeps it away."""

from collections import Counter
from collections.abc import Sequence
from itertools import permutations
from random import Random

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.engine_report import EngineReport
from penstock.balancing.lease import Lease
from penstock.balancing.policies.token_cost import (
    COMPARE,
    FORGET,
    SHUNS_S_MAX,
    TokenCost,
)
from penstock.balancing.speed.compare import SAMPLES_MIN
from penstock.balancing.speed.estimates import PRIOR_STEP_S, PRIOR_WORK_PER_S
from tests.unit.balancing.backends import ready
from tests.unit.balancing.policies.sending import sent

BLOCKS = tuple(range(50))
TURN = Ask("/", prompt_tokens=8_000, stream=True, blocks=BLOCKS, block_tokens=160.0)


def prompt(tokens: int, output: float = 256.0) -> Ask:
    return Ask("/", prompt_tokens=tokens, stream=True, output_tokens=output)


def choose(policy: TokenCost, fit: Sequence[Backend], ask: Ask, now_s: float = 0.0) -> str:
    return " or ".join(sorted(each.name for each in policy.explain(fit, ask, now_s).best))


def stream(backend: Backend, tokens: int, now_s: float = 0.0) -> Lease:
    """Open, without having shown how long its first token took."""
    lease = Lease(backend, prompt(tokens).changed(stream=False), now_s)
    lease.assume_prefilled(now_s)
    return lease


def shown(backend: Backend, slowness: float) -> None:
    """It has been measured to be that slow."""
    backend.refresh(0.0)
    for tokens in (500, 2_000, 8_000) * SAMPLES_MIN:
        seconds = PRIOR_STEP_S + tokens / PRIOR_WORK_PER_S
        backend.prefill_speed.observe(float(tokens), slowness * seconds)


def somewhere(rng: Random, count: int, now_s: float) -> list[Backend]:
    """A fleet with prompts queued and streams open, of measured speeds."""
    fleet = [ready(f"b{number}") for number in range(count)]
    for backend in fleet:
        shown(backend, rng.uniform(0.5, 2.0))
        for _ in range(rng.randrange(6)):
            stream(backend, rng.randint(10, 30_000), now_s)
        for _ in range(rng.randrange(3)):
            Lease(backend, prompt(rng.randint(10, 30_000)), now_s)
    return fleet


def seasoned(rng: Random) -> TokenCost:
    """A policy that has chosen before."""
    policy = TokenCost()
    fleet = somewhere(rng, 4, 0.0)
    for _ in range(200):
        Lease(sent(policy, fleet, prompt(rng.randint(10, 20_000)), 0.0, rng), TURN, 0.0).end(0.0)
    return policy


# Properties -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(100))
def test_more_load_never_attracts(seed: int) -> None:
    rng = Random(seed)
    policy, fleet, ask = seasoned(rng), somewhere(rng, 5, 0.0), prompt(rng.randint(10, 30_000))
    before = policy.places(fleet, ask, 0.0)
    other = rng.choice(fleet)
    kind = rng.randrange(3)
    if kind == 0:
        stream(other, rng.randint(1, 30_000))
    elif kind == 1:
        Lease(other, prompt(rng.randint(1, 30_000)), 0.0)
    else:
        other.penalty.charge(0.0)
    for backend, old, new in zip(fleet, before, policy.places(fleet, ask, 0.0), strict=True):
        if backend is other:
            assert new.seconds > old.seconds
        else:
            assert new.seconds == old.seconds


@pytest.mark.parametrize("seed", range(20))
def test_the_order_of_backends_is_nothing(seed: int) -> None:
    rng = Random(seed)
    policy, fleet, ask = seasoned(rng), somewhere(rng, 4, 0.0), prompt(rng.randint(10, 30_000))
    chosen = {choose(policy, order, ask) for order in permutations(fleet)}
    assert len(chosen) == 1


@pytest.mark.parametrize("scale", [0.01, 0.3, 3.9])  # above it a clamp says that no engine is so
@pytest.mark.parametrize("seed", range(20))
def test_a_slower_clock_changes_no_choice(seed: int, scale: float) -> None:
    """All times, measured or passed, are longer by the same factor: so is every cost."""
    rng = Random(seed)
    policy, fleet = seasoned(rng), somewhere(rng, 5, 0.0)
    asks = [prompt(rng.randint(10, 30_000), rng.uniform(1.0, 2_000.0)) for _ in range(20)]
    policy._seen.clear()
    policy._compare(fleet, 0.5)
    before = [policy.places(fleet, ask, 0.5) for ask in asks]
    policy._prefills_s *= scale
    for backend in fleet:
        backend.prefill_speed.work_s *= scale
        backend.prefill_speed._fit.a *= scale
        backend.prefill_speed._fit.b *= scale
        backend.decode_speed._fit.a *= scale
        backend.decode_speed._fit.b *= scale
    policy._compare(fleet, 0.5 * scale)
    after = [policy.places(fleet, ask, 0.5 * scale) for ask in asks]
    for old, new in zip(before, after, strict=True):
        for a, b in zip(old, new, strict=True):
            assert b.seconds == pytest.approx(scale * a.seconds)


def given(policy: TokenCost, fleet: Sequence[Backend], count: int) -> Counter[str]:
    """Who gets so many requests, each of which is over before the next."""
    counts: Counter[str] = Counter()
    for number in range(count):
        chosen = sent(policy, fleet, prompt(1_000), 0.0, Random(number))
        counts[chosen.name] += 1
        Lease(chosen, prompt(1_000), 0.0).end(0.0)
    return counts


def test_idle_engines_are_given_work_evenly_by_weight() -> None:
    counts = given(TokenCost(), [ready("a"), ready("b"), ready("light", 0.1)], 2_100)
    assert [counts[name] for name in ("a", "b", "light")] == pytest.approx([1_000, 1_000, 100], 0.2)


def test_what_is_known_of_the_backends_of_one_model_outlives_requests_for_another() -> None:
    fleet = [ready(name) for name in "abcd"]
    for backend, slowness in zip(fleet, (1.0, 3.0, 1.0, 3.0), strict=True):
        shown(backend, slowness)
    policy = TokenCost()
    for _ in range(2 * COMPARE):
        for half in (fleet[:2], fleet[2:]):
            sent(policy, half, prompt(1_000), 0.0, Random(1))
    assert choose(policy, fleet[:2], prompt(1_000)) == "a"
    assert choose(policy, fleet[2:], prompt(1_000)) == "c"


def test_engines_that_are_alike_stay_alike_beside_any_others() -> None:
    """Retries, slow starts and models leave some out: the mean is that of all, whoever is asked."""
    fleet = [ready(name) for name in "abcd"]
    for backend, slowness in zip(fleet, (1.0, 1.1, 1.2, 1.3), strict=True):
        shown(backend, slowness)
    policy = TokenCost()
    for number in range(20 * COMPARE):
        some = [backend for backend in fleet if backend.name != "abcd"[number % 4]]
        sent(policy, some, prompt(1_000), 0.0, Random(1))
        costs = policy.places(fleet, prompt(1_000), 0.0)
        assert len({cost.seconds for cost in costs}) == 1


def test_backends_that_went_are_forgotten() -> None:
    policy = TokenCost()
    for number in range(500):
        given(policy, [ready(f"a{number}"), ready(f"b{number}")], 20)
    assert len(policy._seen) < 2.1 * FORGET / 20


# What counts ------------------------------------------------------------------------------


def test_a_cached_prefix_draws() -> None:
    warm, cold = ready("warm"), ready("cold")
    lease = Lease(warm, TURN, 0.0)
    lease.first_token(1.0)
    lease.end(1.0)
    assert choose(TokenCost(), [cold, warm], TURN) == "warm"


def test_and_a_long_queue_there_repels() -> None:
    warm, cold = ready("warm"), ready("cold")
    Lease(warm, TURN, 0.0).end(0.0)
    for _ in range(3):
        Lease(warm, prompt(20_000), 0.0)
    assert choose(TokenCost(), [cold, warm], TURN) == "cold"


def test_a_long_prompt_minds_a_queue_more_than_a_short_one() -> None:
    """A queue of half a second here, streams that slow decoding there."""
    queue, streams = ready("queue"), ready("streams")
    Lease(queue, prompt(4_000), 0.0)
    policy = TokenCost()
    assert choose(policy, [queue, streams], prompt(50, 10.0)) == "streams"
    gap = [
        cost.later_s / cost.prefill_s
        for cost in policy.places([queue, streams], prompt(30_000), 0.0)
    ]
    assert gap[0] > gap[1] == 0.0


def test_of_two_idle_ones_the_faster() -> None:
    fast, slow = ready("fast"), ready("slow")
    shown(fast, 1.0)
    shown(slow, 2.0)
    policy = TokenCost()
    for _ in range(2):  # now it has looked
        sent(policy, [slow, fast], prompt(1_000), 0.0, Random(1))
    assert choose(policy, [slow, fast], prompt(1_000)) == "fast"


def test_a_long_answer_minds_what_is_held_more_than_a_short_one() -> None:
    """Held tokens slow down every step; 0.1 s of prefill ahead is over before long."""
    holds, queue = ready("holds"), ready("queue")
    for _ in range(4):
        stream(holds, 50_000)
    for _ in range(4):
        Lease(queue, prompt(1_500), 0.0)
    assert choose(TokenCost(), [holds, queue], prompt(100, 4_000.0)) == "queue"
    assert choose(TokenCost(), [holds, queue], prompt(100, 2.0)) == "holds"


def test_requests_of_others_count() -> None:
    """A scrape says that somebody else uses it too."""
    alone, shared = ready("alone"), ready("shared")
    shared.take(EngineReport(0.0, running=20))
    assert choose(TokenCost(), [shared, alone], prompt(1_000)) == "alone"


def test_twice_the_weight_is_half_the_load() -> None:
    strong, weak = ready("strong", weight=2.0), ready("weak")
    for backend, requests in ((strong, 3), (weak, 2)):
        for _ in range(requests):
            stream(backend, 5_000)
            Lease(backend, prompt(1_000), 0.0)
    assert choose(TokenCost(), [weak, strong], prompt(1_000)) == "strong"


def test_a_black_hole_draws_nothing_however_busy_the_others_are() -> None:
    """A penalty of a second beside streams that cost seconds."""
    hole, busy = ready("hole", weight=8.0), ready("busy")
    for _ in range(20):
        stream(busy, 20_000)
    assert choose(TokenCost(), [hole, busy], prompt(4_000)) == "hole"
    hole.penalty.charge(0.0, hint_s=1.0)
    assert choose(TokenCost(), [hole, busy], prompt(4_000), 0.9) == "busy"
    assert choose(TokenCost(), [hole, busy], prompt(4_000), 1.1) == "hole"


def test_the_failures_of_others_do_not_bury_the_last_one() -> None:
    sound, failed = ready("sound"), ready("failed")
    failed.penalty.charge(0.0, hint_s=5.0)
    policy = TokenCost()
    while sound.wait_s(0.0) < SHUNS_S_MAX:
        assert choose(policy, [sound, failed], prompt(100)) == "sound"
        Lease(sound, prompt(1_000), 0.0)
    while sound.wait_s(0.0) < 5.0 + 1.2 * SHUNS_S_MAX:
        Lease(sound, prompt(1_000), 0.0)
    assert choose(policy, [sound, failed], prompt(100)) == "failed"


def test_where_all_fail_the_lesser_penalty_counts() -> None:
    one, other = ready("one", weight=8.0), ready("other")
    one.penalty.charge(0.0, hint_s=10.0)
    other.penalty.charge(0.0, hint_s=5.0)
    assert choose(TokenCost(), [one, other], prompt(100)) == "other"


def test_where_nearly_all_is_cached_a_queue_of_milliseconds_drives_nobody_away() -> None:
    """A step is as long as any prefill, however little there is to do."""
    fleet = [ready("a"), ready("b")]
    policy = TokenCost()
    for _ in range(1_000):
        lease = Lease(sent(policy, fleet, TURN, 0.0, Random(1)), TURN, 0.0)
        lease.first_token(0.02)
        lease.end(0.02)
    Lease(fleet[0], prompt(150), 0.0)
    later_s = policy.places(fleet, prompt(20_000), 0.0)[0].later_s
    assert 0.0 < later_s < 0.5


def test_what_no_engine_works_on_has_no_prefill_and_teaches_none() -> None:
    fleet = [ready("a"), ready("b")]
    policy = TokenCost()
    tokenize = Ask(*("/tokenize", None, 20_000), generates=False, engine=False, output_tokens=0.0)
    before = policy.places(fleet, prompt(1_000), 0.0)
    for _ in range(200):
        sent(policy, fleet, tokenize, 0.0, Random(1))
    assert policy.places(fleet, tokenize, 0.0)[0].seconds == 0.0
    Lease(fleet[0], prompt(1_000), 0.0)
    Lease(fleet[1], prompt(1_000), 0.0)
    after = policy.places(fleet, prompt(1_000), 0.0)
    assert after[0].prefill_s == before[0].prefill_s
    assert after[0].later_s == pytest.approx(0.4 * after[0].wait_s * after[0].prefill_s / 0.05)
