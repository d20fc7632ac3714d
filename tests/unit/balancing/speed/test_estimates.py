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
