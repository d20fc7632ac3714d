"""Answers that come whole show no first token: what is learnt of an engine's speed all the same."""

from random import Random
from typing import Final

import pytest

from penstock.bench.routing.cell import maker
from penstock.bench.routing.experiment import Adversity, Experiment
from penstock.bench.routing.generators import uniform
from penstock.bench.routing.trace import speedup
from penstock.bench.sim.profiles import GPUS

GPU: Final = GPUS["70b-4xh100"]


@pytest.mark.parametrize("plain", [0.0, 0.5, 1.0])
def test_plain_answers_are_placed_about_as_well_as_streams(plain: float) -> None:
    arrivals = uniform(200.0, Random(1))
    faster = speedup(arrivals, GPU, 4, 0.8)
    arrivals = [each._replace(at_s=each.at_s / faster) for each in arrivals]
    experiment = Experiment(
        maker("token_cost"), GPU, backends=4, routers=1, seed=1, adversity=Adversity(plain=plain)
    )
    figures = experiment.run(arrivals).figures()
    learnt = [round(each.prefill_speed.work_per_s) for each in experiment.known]
    steps = [round(1e3 * each.decode_speed.step_s, 1) for each in experiment.known]
    print(f"plain {plain:.0%}: {learnt} work/s, {steps} ms, {figures}")
    assert figures["ttft_p99_s"] < 2.0
    assert all(each > 10_000 for each in learnt)
