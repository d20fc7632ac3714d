"""A backend that is many times slower than its peers: how many requests that costs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Final

import pytest

from penstock.balancing.policies.token_cost import TokenCost
from penstock.bench.routing.experiment import Experiment
from penstock.bench.routing.trace import Arrival
from penstock.bench.sim.engine import Engine
from penstock.bench.sim.profiles import GPUS, Gpu

GPU: Final = GPUS["70b-4xh100"]
SLOWER: Final = 15.0


def slowed(profile: Gpu) -> Gpu:
    return replace(
        profile,
        weights_s=SLOWER * profile.weights_s,
        token_s=SLOWER * profile.token_s,
        attention_s=SLOWER * profile.attention_s,
        kv_token_s=SLOWER * profile.kv_token_s,
    )


class OneSlow(Experiment):
    """The last engine is slow, from the beginning or from when it is restarted."""

    slow = True

    def __init__(self, backends: int, *, restarted: bool = False) -> None:
        self.slow = not restarted
        super().__init__(lambda known, view: TokenCost(), GPU, backends=backends, routers=1, seed=1)
        self.slow = True
        self.taken: list[str] = []

    def _engine(self, index: int, backends: int) -> Engine:
        slow = self.slow and index == backends - 1
        return Engine(slowed(GPU) if slow else GPU, Random(f"1 {index}"))

    def play(self, arrivals: Sequence[Arrival], *, restart_s: float | None = None) -> None:
        if restart_s is not None:
            last = len(self.known) - 1
            self.at(restart_s, lambda now_s: self._die(last, now_s))
            self.at(restart_s + 20.0, lambda now_s: self._come(last, now_s))
        self.run(arrivals)


def idle(seconds: float, every_s: float) -> list[Arrival]:
    """One request at a time, more or less."""
    rng = Random(1)
    return [
        Arrival(number * every_s, rng.randint(200, 1_000), rng.randint(20, 150))
        for number in range(round(seconds / every_s))
    ]


@pytest.mark.parametrize("backends", [2, 4, 8])
def test_a_fresh_fleet_finds_out_by_a_handful(backends: int) -> None:
    experiment = OneSlow(backends)
    experiment.play(idle(600.0, 5.0))
    counts = Counter({each.name: each.requests_total for each in experiment.known})
    slow = str(backends - 1)
    print(f"slow one of {backends}: {counts[slow]} of 120, {experiment.outcome.figures()}")
    assert counts[slow] <= 12
    del counts[slow]
    assert max(counts.values()) - min(counts.values()) <= 0.3 * 120 / (backends - 1)


def test_one_that_comes_back_slow_is_found_out_by_a_handful() -> None:
    experiment = OneSlow(2, restarted=True)
    experiment.play(idle(600.0, 5.0), restart_s=200.0)
    before = 20  # half of those before the restart
    took = experiment.known[1].requests_total - before
    print(f"after its restart: {took} of 76, {experiment.outcome.figures()}")
    assert took <= 12


def test_many_at_once_lose_a_handful() -> None:
    """A fleet at work, and one of it 15 times slower."""
    rng = Random(1)
    arrivals = [
        Arrival(rng.uniform(0.0, 120.0), rng.randint(200, 4_000), rng.randint(20, 300))
        for _ in range(800)
    ]
    experiment = OneSlow(4)
    experiment.play(sorted(arrivals))
    took = experiment.known[3].requests_total
    print(f"at work: {took} of 800, {experiment.outcome.figures()}")
    assert took <= 40
