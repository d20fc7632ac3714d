"""Degradation at twice the capacity, in virtual time: shorter answers, and more that are good.

The engines of this mix are bound by decoding.
"""

from collections.abc import Callable
from functools import cache
from random import Random

import pytest

from penstock.balancing.admission.degradation import Step
from penstock.bench.overload.calls import Call, Clients, poisson
from penstock.bench.overload.mixes import MIXES
from penstock.bench.overload.scenes import REST_S
from penstock.bench.overload.world import World

MIX = MIXES["decode"]
# All ask for 200 to 1,000 tokens.
CAP = Step(rank=1, pressure=0.5, max_tokens=256)
FIRST_S = 8.0  # left out: until what is learnt has settled
LENGTH_S = 24.0
# The good answers of one seed vary by a quarter.
SEEDS = range(1, 7)


def steady(rate: float) -> Callable[[float], float]:
    """The same rate at all times."""
    return lambda at_s: rate


@cache
def played(
    seed: int,
    rates: tuple[tuple[str, float], ...],
    steps: tuple[Step, ...] = (),
    opted_in: frozenset[str] | None = None,
    high_share: float = 0.0,
    length_s: float = LENGTH_S,
) -> tuple[Call, ...]:
    """`rates`: by tenant, 1.0 is the capacity of the fleet."""
    calls: list[Call] = []
    for tenant, load in rates:
        clients = Clients(high_share=high_share, tenant=tenant)
        rate = load * MIX.capacity_per_s
        calls += poisson(MIX, steady(rate), length_s, Random(f"{tenant} {seed}"), clients)
    world = World(MIX, enabled=True, seed=seed, steps=steps, degradable=opted_in)
    world.run(sorted(calls, key=lambda call: call.at_s), length_s + REST_S)
    return tuple(calls)


def good(calls: tuple[Call, ...], tenant: str | None = None) -> int:
    return sum(call.good for call in of(calls, tenant))


def of(calls: tuple[Call, ...], tenant: str | None = None) -> list[Call]:
    return [c for c in calls if c.at_s > FIRST_S and tenant in (None, c.tenant)]


def of_seeds(play: Callable[[int], tuple[Call, ...]], count: int) -> tuple[Call, ...]:
    """The calls of the first seeds together."""
    return tuple(call for seed in SEEDS[:count] for call in play(seed))


def test_with_shorter_answers_more_of_them_are_good() -> None:
    twice = (("x", 2.0),)
    as_before = of_seeds(lambda seed: played(seed, twice, high_share=0.1), 3)
    degraded = of_seeds(lambda seed: played(seed, twice, (CAP,), high_share=0.1), 3)
    assert good(degraded) >= 1.3 * good(as_before)  # 1.9 in the long run
    assert sum(c.refused for c in degraded) < 0.7 * sum(c.refused for c in as_before)
    # At first nothing is known of the engines. What that costs is the same.
    assert sum(c.late for c in degraded) <= sum(c.late for c in as_before)
    high = [call for call in of(degraded) if call.rank == 0]
    assert all(call.capped is None for call in high)  # the step is for the other class


def test_who_has_not_opted_in_is_never_capped() -> None:
    rates = (("in", 1.0), ("out", 1.0))
    calls = of_seeds(lambda seed: played(seed, rates, (CAP,), frozenset({"in"})), 6)
    assert any(call.capped for call in of(calls, "in"))
    assert all(call.capped is None for call in calls if call.tenant == "out")
    # Nor is it worse off than beside one that is not degraded.
    others = of_seeds(lambda seed: played(seed, rates), 6)
    assert good(calls, "out") >= 0.95 * good(others, "out")


@pytest.mark.parametrize(("flood", "length_s"), [(2.0, 22.0), (20.0, 14.0)])
def test_beside_a_flood_a_tenant_under_its_share_is_not_degraded(
    flood: float, length_s: float
) -> None:
    early = Step(rank=1, pressure=0.3, max_tokens=256)
    calls = played(1, (("attacker", flood), ("victim", 0.2)), (early,), length_s=length_s)
    assert sum(call.capped is not None for call in of(calls, "attacker")) > 100
    victim = of(calls, "victim")
    assert len(victim) > 40
    assert all(call.capped is None for call in victim)
    assert all(call.good for call in victim)


def test_below_the_capacity_nothing_is_cut() -> None:
    calls = played(1, (("x", 0.7),), (CAP,), high_share=0.1)
    assert all(call.capped is None for call in calls)
