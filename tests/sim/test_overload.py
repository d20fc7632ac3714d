"""A fleet above its capacity, in virtual time: with admission it gives as much as at its best."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from random import Random
from statistics import fmean

import pytest

from penstock.balancing.backend import State
from penstock.bench.overload.calls import Call, Clients, poisson
from penstock.bench.overload.cli import Cell
from penstock.bench.overload.mixes import MIXES
from penstock.bench.overload.panel import SCENES
from penstock.bench.overload.scenes import REST_S
from penstock.bench.overload.world import World

LENGTHS_S = {"uniform": 50.0, "skewed": 50.0, "kv": 36.0, "agents": 40.0}
SEEDS = (1, 2)
# In one run the share of the longest quarter is off by 0.07. Without OWN_SHARE it is 0.38.
MORE_SEEDS = (1, 2, 3, 4)
LONGEST_QUARTER_MIN = 0.45


@cache
def run(mix: str, load: float, rule: str, seed: int) -> dict[str, float]:
    return Cell(mix, load, rule, seed, LENGTHS_S[mix]).figures()


def figures_of(
    mix: str, load: float, rule: str, seeds: tuple[int, ...] = SEEDS
) -> dict[str, float]:
    """The means of some runs."""
    runs = [run(mix, load, rule, seed) for seed in seeds]
    return {name: fmean(run[name] for run in runs) for name in runs[0]}


def test_at_twice_the_capacity_a_fleet_goes_on_serving() -> None:
    admitted, at_once = (figures_of("uniform", 2.0, rule) for rule in ("admission", "at_once"))
    # Of 50 s and two seeds: 2.6 to 3.4 times were seen.
    assert admitted["good_per_s"] >= 2.5 * at_once["good_per_s"]
    assert admitted["tokens_per_s"] >= 90_000
    assert admitted["late"] == 0.0
    assert admitted["prediction_error"] <= 0.4


def test_at_twice_the_capacity_the_high_class_feels_nothing() -> None:
    admitted = figures_of("uniform", 2.0, "admission")
    assert admitted["high_goodput"] >= 0.98
    assert admitted["high_ttft_p99_s"] <= 1.0


def test_the_high_class_waits_for_no_answers_of_the_low_one() -> None:
    """It sends 0.3 of the capacity, and all together twice that."""
    told = replace(SCENES["classes_kv"], length_s=LENGTHS_S["kv"]).figures("admission", 1)
    assert told["high_ttft_p99_s"] <= told["alone_ttft_p99_s"] + 0.5
    assert told["tokens_per_s"] >= 33_000


def test_at_twice_the_capacity_long_prompts_are_not_the_ones_that_are_refused() -> None:
    admitted = figures_of("uniform", 2.0, "admission", MORE_SEEDS)
    assert admitted["longest_quarter"] >= LONGEST_QUARTER_MIN


def test_above_it_the_high_class_has_its_tokens_in_time_beside_long_prompts() -> None:
    """0.8 if a low class's long prompts may follow each other beside its streams."""
    admitted = figures_of("skewed", 1.1, "admission")
    assert admitted["high_goodput"] >= 0.95
    assert admitted["tokens_per_s"] >= 90_000


def test_below_its_capacity_nobody_notices() -> None:
    admitted, at_once = (figures_of("uniform", 0.6, rule) for rule in ("admission", "at_once"))
    assert admitted["refused"] == 0.0
    assert admitted["goodput"] >= at_once["goodput"] - 0.001
    assert admitted["low_ttft_p99_s"] <= 1.1 * at_once["low_ttft_p99_s"]


def test_caches_that_would_run_over_do_not() -> None:
    admitted, at_once = (figures_of("kv", 2.0, rule) for rule in ("admission", "at_once"))
    assert admitted["preemptions"] < at_once["preemptions"] / 5
    assert admitted["tokens_per_s"] >= at_once["tokens_per_s"]
    assert admitted["late"] <= 0.001


def test_common_beginnings_leave_room_in_caches_that_are_nearly_full() -> None:
    """Streams with one beginning hold it once. With a third of that known, 26 % were refused."""
    admitted = Cell("agents", 0.95, "admission", 2, 80.0).figures()
    assert admitted["refused"] <= 0.05
    assert admitted["goodput"] >= 0.99


def test_prompts_with_cached_beginnings_stay_where_those_are() -> None:
    admitted, at_once = (figures_of("agents", 0.75, rule) for rule in ("admission", "at_once"))
    assert at_once["goodput"] == 1.0
    assert admitted["goodput"] >= 0.999
    assert admitted["refused"] == 0.0


# After a trigger ---------------------------------------------------------------------------

TRIGGER_S = (30.0, 60.0)
BACK_S = 30.0
BASE = 0.85


def goodput(calls: Sequence[Call], from_s: float, to_s: float) -> float:
    """Of those that came in this time."""
    return fmean(call.good for call in calls if from_s <= call.at_s < to_s)


@cache
def after(trigger: str, *, enabled: bool, seed: int) -> tuple[float, int]:
    """For 30 s three times as many come (`burst`), or half of the fleet is away (`half`).

    Goodput of those that come 30 s later, over that of before, and how many of them are refused.
    """
    mix = MIXES["uniform"]
    begins_s, ends_s = TRIGGER_S

    def rate(at_s: float) -> float:
        burst = trigger == "burst" and begins_s <= at_s < ends_s
        return BASE * mix.capacity_per_s * (3.0 if burst else 1.0)

    until_s = ends_s + BACK_S + 30.0
    calls = poisson(mix, rate, until_s, Random(f"{seed}"), Clients(patience_s=10.0))
    world = World(mix, enabled=enabled, seed=seed)
    if trigger == "half":
        half = world.backends[: len(world.backends) // 2]
        world.at(begins_s, lambda now_s: world.put(half, State.EJECTED))
        world.at(ends_s, lambda now_s: world.put(half, State.READY))
    log = world.run(calls, until_s + REST_S)
    back = goodput(calls, ends_s + BACK_S, until_s) / goodput(calls, 5.0, begins_s)
    return back, sum(at_s >= ends_s + BACK_S for at_s in log.refusals)


@pytest.mark.parametrize("trigger", ["burst", "half"])
@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_too_much_is_forgotten_within_half_a_minute(trigger: str, seed: int) -> None:
    back, refused = after(trigger, enabled=True, seed=seed)
    assert back >= 0.98
    assert refused == 0


@pytest.mark.parametrize("trigger", ["burst", "half"])
@pytest.mark.parametrize("seed", SEEDS)
def test_without_admission_it_is_not_forgotten(trigger: str, seed: int) -> None:
    """The control: if this ever recovers by itself, the test above shows nothing."""
    assert after(trigger, enabled=False, seed=seed)[0] < 0.8


@pytest.mark.parametrize("load", [2.0, 5.0])
def test_a_backend_that_dies_takes_no_more_than_its_part(load: float) -> None:
    """One of four is away for 20 s, while far too many come."""
    mix = MIXES["uniform"]
    begins_s, ends_s, until_s = 20.0, 40.0, 60.0
    calls = poisson(mix, lambda _: load * mix.capacity_per_s, until_s, Random("1"), Clients())
    world = World(mix, enabled=True, seed=1)
    dead = world.backends[:1]
    world.at(begins_s, lambda now_s: world.put(dead, State.EJECTED))
    world.at(ends_s, lambda now_s: world.put(dead, State.READY))
    log = world.run(calls, until_s + REST_S)

    def tokens_per_s(from_s: float, to_s: float) -> float:
        return sum([n for at_s, n in log.tokens if from_s <= at_s < to_s]) / (to_s - from_s)

    before = tokens_per_s(8.0, begins_s)
    assert tokens_per_s(begins_s + 3.0, ends_s) >= 0.7 * before  # 0.75 are left
    assert tokens_per_s(ends_s, until_s) >= 0.95 * before
    assert fmean(call.good for call in calls if call.rank == 0 and call.at_s > 8.0) >= 0.98


@pytest.mark.parametrize("seed", SEEDS)
def test_caches_that_are_lost_at_once_are_hardly_noticed(seed: int) -> None:
    """Seven seconds of all engines' prefill are to be done again, beside 0.85 of the capacity.

    There is no control: without admission these engines recover, too.
    """
    mix = MIXES["agents"]
    until_s = 70.0
    rate = BASE * mix.capacity_per_s
    calls = poisson(mix, lambda _: rate, until_s, Random(f"{seed}"), Clients(patience_s=10.0))
    world = World(mix, enabled=True, seed=seed)
    world.at(30.0, lambda now_s: world.clear_caches())
    log = world.run(calls, until_s + REST_S)
    assert goodput(calls, 30.0, until_s) >= 0.98
    assert sum(at_s >= 60.0 for at_s in log.refusals) == 0


def test_a_run_can_be_repeated() -> None:
    cell = Cell("uniform", 2.0, "admission", 3, 22.0)
    assert cell.figures() == cell.figures()
