"""The cost in seconds: what draws a request to a place and what keeps it away."""

from collections import Counter
from collections.abc import Sequence
from itertools import permutations
from random import Random

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend, State
from penstock.balancing.engine_report import EngineReport
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.gate import Gate
from penstock.balancing.lease import Lease, Reason
from penstock.balancing.policies.token_cost import (
    COMPARE,
    FORGET,
    SHUNS_S_MAX,
    STRICT_S_MAX,
    TokenCost,
)
from penstock.balancing.speed.compare import SAMPLES_MIN
from penstock.balancing.speed.estimates import PRIOR_STEP_S, PRIOR_WORK_PER_S
from tests.unit.balancing.backends import answered, ready
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


def test_a_cached_prefix_draws_and_a_long_queue_there_repels() -> None:
    warm, cold = ready("warm"), ready("cold")
    answered(Lease(warm, TURN, 0.0), 1.0)
    assert choose(TokenCost(), [cold, warm], TURN) == "warm"
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


# Sessions and explanations -----------------------------------------------------------------


# Sessions ---------------------------------------------------------------------------------


def gate_of(backends: Sequence[Backend], *, strict: bool = False) -> Gate:
    fleet = Fleet((Pool("p", tuple(backends), TokenCost(strict=strict)),))
    return Gate(lambda: fleet, Random(1))


def test_a_session_that_stays_is_affinity_and_one_that_goes_is_spill() -> None:
    gate = gate_of([ready("a"), ready("b")])
    ask = TURN.changed(session="s")
    first = gate.choose(ask, 0.0)
    assert first.reason is Reason.COST
    first.end(0.0)
    again = gate.choose(ask, 1.0)
    assert (again.reason, again.backend) == (Reason.AFFINITY, first.backend)
    again.end(1.0)
    for _ in range(5):
        Lease(first.backend, prompt(30_000), 2.0)
    moved = gate.choose(ask, 2.0)
    assert moved.reason is Reason.SPILL
    assert moved.backend is not first.backend


def test_a_strict_session_stays_until_that_costs_too_much_or_its_home_is_out() -> None:
    gate = gate_of([ready("a"), ready("b")], strict=True)
    ask = Ask("/", prompt_tokens=100, stream=True, session="s")
    home = gate.choose(ask, 0.0).backend
    Lease(home, prompt(30_000), 0.0)
    assert gate.choose(ask, 0.0).backend is home
    while home.wait_s(0.0) < 2 * STRICT_S_MAX:
        Lease(home, prompt(30_000), 0.0)
    moved = gate.choose(ask, 0.0)
    assert moved.reason is Reason.SPILL
    moved.backend.state = State.EJECTED
    assert gate.choose(ask, 0.0).backend is home


def test_a_home_that_fails_is_left_but_by_strict_sessions() -> None:
    for strict in (False, True):
        a, b = ready("a"), ready("b")
        gate = gate_of([a, b], strict=strict)
        ask = Ask("/", prompt_tokens=100, stream=True, session="s")
        home = gate.choose(ask, 0.0).backend
        for _ in range(40):
            stream(b if home is a else a, 20_000)
        home.penalty.charge(0.0, hint_s=1.0)
        assert (gate.choose(ask, 0.0).backend is home) is strict


# Explanations -----------------------------------------------------------------------------


def test_who_cannot_take_it_says_why() -> None:
    fleet = [ready(name) for name in "abcd"]
    fleet[1].state, fleet[1].reason = State.EJECTED, "unreachable"
    fleet[2].models = {"other": b""}
    fleet[3].state, fleet[3].reason, fleet[3].doubted = State.EJECTED, "stalled", True
    told = gate_of(fleet).explain(Ask("/", model="m"), 0.0)
    assert [each.out for each in told.candidates] == [
        "",
        "ejected: unreachable",
        "does not serve the model",
        "ejected (stalled): used only when no other can serve",
    ]


def test_nobody_is_told_too() -> None:
    backend = ready("a")
    backend.state = State.STARTING
    told = gate_of([backend]).explain(prompt(10), 0.0)
    assert (told.pool, told.chosen, bool(told.candidates[0].out)) == (None, [], True)


@pytest.mark.parametrize("seed", range(20))
def test_what_would_make_it_win_does(seed: int) -> None:
    """Take the tokens ahead away that it says are too many, and it is among the cheapest."""
    policy, fleet, ask = TokenCost(), [ready("a"), ready("b")], prompt(100 + 400 * seed)
    for _ in range(2 + seed % 3):
        Lease(fleet[0], prompt(10_000 + 1_000 * seed), 0.0)
        Lease(fleet[1], prompt(1), 0.0)
    assert choose(policy, fleet, ask) == "b"
    told = policy.explain(fleet, ask, 0.0).parts[0]
    assert "fewer tokens to prefill" in told.to_win
    tokens = int(told.to_win.split(" ")[0].replace(",", ""))
    assert 0 < tokens <= fleet[0].queued_prefill_tokens
    work = fleet[0].queued_work * tokens / fleet[0].queued_prefill_tokens
    fleet[0].own.queued_work -= int(work * 0.9)
    assert choose(policy, fleet, ask) == "b"
    fleet[0].own.queued_work -= int(work * 0.11)
    assert "a" in choose(policy, fleet, ask)


def test_one_that_failed_is_told_to_wait_for_the_end_of_its_penalty() -> None:
    fleet = [ready("a"), ready("b")]
    fleet[0].penalty.charge(0.0)
    end = "the end of its penalty for failures, in 3.0 s"

    def way() -> str:
        told = gate_of(fleet).explain(prompt(100), 2.0)
        assert told.chosen == ["b"]
        return told.candidates[0].part.to_win

    assert way() == end
    Lease(fleet[0], prompt(9_000), 2.0)
    assert way() == f"{end} and 100% less load of every kind"
    Lease(fleet[1], prompt(2_000), 2.0)
    assert way().startswith(f"{end} and ")
    assert "fewer tokens to prefill before it" in way()


def test_a_strict_session_that_would_not_move_for_an_idle_one_is_told_so() -> None:
    fleet = [ready("a"), ready("b")]
    gate = gate_of(fleet, strict=True)
    ask = Ask("/", prompt_tokens=100, stream=True, session="s")
    home = gate.choose(ask, 0.0).backend
    (other,) = {"a", "b"} - {home.name}
    told = {each.backend.name: each.part for each in gate.explain(ask, 0.0).candidates}
    assert told[other].to_win == ""
    assert told[other].why_not == f"the session stays at {home.name} unless the cost rises there"
    while home.wait_s(0.0) < STRICT_S_MAX:  # it stays still, but for a bit
        Lease(home, prompt(30_000), 0.0)
    Lease(fleet[0] if fleet[0] is not home else fleet[1], prompt(30_000), 0.0)
    told = {each.backend.name: each.part for each in gate.explain(ask, 0.0).candidates}
    assert "fewer tokens to prefill" in told[other].to_win


def test_what_would_decide_between_equals_is_told() -> None:
    fleet = [ready("a"), ready("b")]
    gate = gate_of(fleet)
    first = gate.choose(prompt(100), 0.0)
    first.end(0.0)
    told = gate.explain(prompt(100), 0.0)
    (second,) = {"a", "b"} - {first.backend.name}
    assert told.chosen == [second]
    ways = {each.backend.name: each.part.to_win for each in told.candidates}
    assert ways[second] == ""
    assert ways[first.backend.name].startswith("a longer time without a request")
    assert f"same as {second}" in ways[first.backend.name]
