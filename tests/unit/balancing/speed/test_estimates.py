"""What is learnt of a backend's speed: from priors far off, past outliers, of several measures."""

from random import Random

import pytest

from penstock.balancing.speed.estimates import (
    HELD_TOKEN_S_MAX,
    PRIOR_HELD_TOKEN_S,
    PRIOR_STEP_S,
    PRIOR_WORK_PER_S,
    STEPS_MIN,
    DecodeSpeed,
    PrefillSpeed,
    prior_prefill_s,
)
from penstock.balancing.speed.least_squares import LeastSquares

SEEDS = range(5)


def prefilled(
    slower: float, rng: Random, samples: int, speed: PrefillSpeed | None = None
) -> tuple[PrefillSpeed, float]:
    """A speed that has seen an engine so many times slower than the prior; and the truth."""
    speed = speed or PrefillSpeed()
    work_s = slower / PRIOR_WORK_PER_S
    for _ in range(samples):
        work = rng.choice((rng.uniform(50, 500), rng.uniform(500, 8e3), rng.uniform(8e3, 4e4)))
        truth_s = work * work_s + slower * PRIOR_STEP_S
        speed.observe(work, truth_s * rng.lognormvariate(0.0, 0.2))
    return speed, work_s


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("slower", [1 / 3, 1.0, 3.0])
def test_prefill_converges_within_a_hundred_requests(slower: float, seed: int) -> None:
    speed, work_s = prefilled(slower, Random(seed), 100)
    assert speed.work_s == pytest.approx(work_s, rel=0.1)


@pytest.mark.parametrize("slower", [0.1, 10.0, 50.0])
def test_prefill_of_engines_unlike_any_known_is_learnt_too(slower: float) -> None:
    speed, work_s = prefilled(slower, Random(1), 300)
    assert speed.work_s == pytest.approx(work_s, rel=0.15)


def test_prompts_that_all_cost_alike_teach_what_they_cost() -> None:
    speed = PrefillSpeed()
    for _ in range(200):
        speed.observe(2_000.0, 1.0)
    assert 2_000.0 * speed.work_s + speed.step_s == pytest.approx(1.0, rel=0.02)


def test_cached_prompts_do_not_make_a_fast_engine_look_slow() -> None:
    """Nothing but the step is left of them: 20 ms for 10 tokens is no prefill rate."""
    speed, rng = PrefillSpeed(), Random(1)
    for _ in range(300):
        work = 10.0 if rng.random() < 0.9 else 8_000.0
        speed.observe(work, 0.020 + work / 15_000.0)
    assert speed.work_s == pytest.approx(1 / 15_000.0, rel=0.1)


def test_outliers_are_bounded() -> None:
    rng = Random(1)
    speed, work_s = prefilled(1.0, rng, 200)
    speed.observe(1_000.0, 3_600.0)
    assert speed.work_s == pytest.approx(work_s, rel=0.25)
    prefilled(1.0, rng, 100, speed)
    assert speed.work_s == pytest.approx(work_s, rel=0.1)


@pytest.mark.parametrize("cost", [0.0, 1e-9, 1e9])
def test_absurd_samples_leave_finite_speeds(cost: float) -> None:
    speed, decode = PrefillSpeed(), DecodeSpeed()
    for _ in range(100):
        speed.observe(1.0, cost)
        decode.observe(100, cost, cost, 0.0)
    assert 0.0 < speed.work_s < float("inf")
    assert 0.0 <= decode.itl_s(1e6) < float("inf")


def decoded(slower: float, rng: Random, samples: int) -> tuple[DecodeSpeed, float, float]:
    speed = DecodeSpeed()
    step_s = slower * PRIOR_STEP_S
    token_s = slower * PRIOR_HELD_TOKEN_S
    for _ in range(samples):
        held, steps = rng.uniform(0.0, 3e5), rng.randint(16, 400)
        prefill_s = rng.random() * steps * step_s
        seconds = (steps * (step_s + token_s * held) + prefill_s) * rng.lognormvariate(0.0, 0.1)
        speed.observe(steps, seconds, prefill_s * rng.lognormvariate(0.0, 0.2), held)
    return speed, step_s, token_s


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("slower", [1 / 3, 1.0, 3.0])
def test_decode_converges_within_a_hundred_requests(slower: float, seed: int) -> None:
    speed, step_s, token_s = decoded(slower, Random(seed), 100)
    for held in (0.0, 1.5e5, 3e5):
        assert speed.itl_s(held) == pytest.approx(step_s + token_s * held, rel=0.15)


def test_what_a_held_token_adds_is_clamped() -> None:
    speed, _, token_s = decoded(20.0, Random(1), 400)
    assert speed.held_token_s == HELD_TOKEN_S_MAX < token_s


def test_short_streams_teach_nothing() -> None:
    speed = DecodeSpeed()
    speed.observe(STEPS_MIN - 1, 100.0, 0.0, 0.0)
    assert speed.step_s == PRIOR_STEP_S


def test_a_measure_that_is_always_zero_keeps_its_prior() -> None:
    fit = LeastSquares((1.0, 5.0), (0.3, 0.3), fade=0.98, surprise_max=2.0, least=1.0, keep=0.5)
    for _ in range(100):
        fit.observe((10.0, 0.0), 20.0)
    assert fit.a == pytest.approx(2.0, rel=0.01)
    assert fit.b == 5.0


# One client does not decide what is learnt, however much it sends ---------------------------

TRUE_WORK_PER_S = 5_600.0


def answer(speed: PrefillSpeed, work: float, seconds: float, client: str) -> None:
    """An answer of one client, as a lease tells it."""
    speed.recent.observe(seconds / prior_prefill_s(work), client)
    speed.observe(work, seconds)


def taught(speed: PrefillSpeed, clients: str, answers: int, work_per_s: float) -> None:
    """Each client gets so many answers of an engine with that speed."""
    for _ in range(answers):
        for client in clients:
            seconds = 0.020 + 8_000.0 / work_per_s
            answer(speed, 8_000.0, seconds, client)


def honest(speed: PrefillSpeed, rng: Random, client: str) -> None:
    work = rng.uniform(500.0, 8_000.0)
    answer(speed, work, (0.020 + work / TRUE_WORK_PER_S) * rng.lognormvariate(0.0, 0.2), client)


@pytest.mark.parametrize("victims", [1, 3, 40])
def test_prompts_found_in_a_cache_that_we_cannot_see_teach_their_client_alone(victims: int) -> None:
    """It asks before all others, and twenty times as often as they do."""
    speed, rng = PrefillSpeed(), Random(1)
    for _ in range(50):
        answer(speed, 60_000.0, 0.05, "attacker")
    assert speed.work_per_s > 10 * PRIOR_WORK_PER_S  # as of an engine with one client
    for place in range(60 * victims):
        honest(speed, rng, f"victim {place % victims}")
        for _ in range(20 // victims):
            answer(speed, 60_000.0, 0.05, "attacker")
    assert speed.work_per_s == pytest.approx(TRUE_WORK_PER_S, rel=0.25)


def test_prompts_that_are_slow_by_themselves_teach_their_client_alone() -> None:
    speed, rng = PrefillSpeed(), Random(1)
    for place in range(300):
        honest(speed, rng, f"victim {place % 3}")
        answer(speed, 500.0, 5.0, "attacker")
    assert speed.work_per_s == pytest.approx(TRUE_WORK_PER_S, rel=0.25)
    assert speed.step_s < 0.2


def test_one_busy_client_does_not_decide_because_the_others_are_new() -> None:
    speed = PrefillSpeed()
    taught(speed, "a", 40, 1_000_000.0)
    taught(speed, "bcd", 3, 15_000.0)
    assert speed.work_per_s == pytest.approx(15_000.0, rel=0.3)


def test_nor_do_a_few_requests_of_new_ones_wipe_out_what_a_busy_one_taught() -> None:
    speed = PrefillSpeed()
    taught(speed, "a", 40, 2_000.0)
    taught(speed, "bc", 2, 2_000.0)
    assert speed.work_per_s == pytest.approx(2_000.0, rel=0.1)
    taught(speed, "d", 1, 15_000.0)  # far off
    assert speed.work_per_s == pytest.approx(2_000.0, rel=0.1)


@pytest.mark.parametrize("clients", [1, 7, 200])
def test_honest_clients_teach_the_speed_however_many_they_are(clients: int) -> None:
    speed, rng = PrefillSpeed(), Random(1)
    for place in range(700):
        honest(speed, rng, f"client {place % clients}")
    assert speed.work_per_s == pytest.approx(TRUE_WORK_PER_S, rel=0.1)


def test_clients_with_short_prompts_have_no_say_in_what_a_token_costs() -> None:
    """Their answers take as long as a step, on any engine."""
    speed, rng = PrefillSpeed(), Random(1)
    for _ in range(200):
        for client, work in (("long", rng.uniform(500.0, 20_000.0)), ("short", 60.0)):
            seconds = (0.020 + work / 46_000.0) * rng.lognormvariate(0.0, 0.2)
            answer(speed, work, seconds, client)
    assert speed.work_per_s == pytest.approx(46_000.0, rel=0.1)
