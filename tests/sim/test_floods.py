"""One tenant floods a fleet at ten and a hundred times its capacity: another notices little."""

from collections.abc import Callable
from functools import cache
from random import Random

import pytest

from penstock.bench.overload.calls import Call, Clients, poisson
from penstock.bench.overload.mixes import MIXES
from penstock.bench.overload.scenes import REST_S
from penstock.bench.overload.world import World
from penstock.bench.routing.outcome import quantile

# The victim's part of the capacity: two tenants have a half each.
SHARE = 0.2
FIRST_S = 8.0  # left out: how many streams an engine runs is learnt by then
LATER_S = 0.5  # the window, and two steps of 8,192 tokens


def steady(rate: float) -> Callable[[float], float]:
    """The same rate at all times."""
    return lambda at_s: rate


@cache
def victim(mix_name: str, flood: float, length_s: float) -> tuple[Call, ...]:
    """What becomes of its calls beside a flood of so many times the capacity."""
    mix = MIXES[mix_name]
    rates = {"victim": SHARE, "attacker": flood}
    calls = []
    for tenant, share in rates.items():
        if share:
            clients = Clients(high_share=0.0, tenant=tenant)
            rate = share * mix.capacity_per_s
            calls += poisson(mix, steady(rate), length_s, Random(tenant), clients)
    world = World(mix, enabled=True, seed=1)
    world.run(sorted(calls, key=lambda call: call.at_s), length_s + REST_S)
    return tuple(call for call in calls if call.tenant == "victim" and call.at_s > FIRST_S)


def p99_s(calls: tuple[Call, ...]) -> float:
    return quantile([call.ttft_s for call in calls if call.ttft_s >= 0.0], 0.99)


@pytest.mark.parametrize("mix", ["uniform", "kv", "decode"])
@pytest.mark.parametrize(("flood", "length_s"), [(2.0, 35.0), (10.0, 20.0), (100.0, 12.0)])
def test_a_tenant_under_its_share_is_served_beside_any_flood(
    mix: str, flood: float, length_s: float
) -> None:
    alone, beside = victim(mix, 0.0, 35.0), victim(mix, flood, length_s)
    assert len(beside) >= 10
    assert all(call.good for call in beside)
    assert sum(call.refused for call in beside) == 0
    assert p99_s(beside) <= p99_s(alone) + LATER_S
