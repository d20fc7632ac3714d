"""A backend that ends every answer after one token, among four, in virtual time."""

from random import Random

import pytest

from penstock.bench.routing.cell import maker
from penstock.bench.routing.experiment import Adversity, Experiment
from penstock.bench.routing.generators import uniform
from penstock.bench.routing.trace import fitting, speedup
from penstock.bench.sim.profiles import GPUS

GPU = GPUS["70b-4xh100"]
BACKENDS = 4


@pytest.mark.parametrize("clients", [1, 20])
def test_it_does_not_get_most_requests(clients: int) -> None:
    rng = Random(1)
    arrivals = fitting(uniform(1_800.0, rng), GPU)
    faster = speedup(arrivals, GPU, BACKENDS, 0.6)
    experiment = Experiment(
        maker("token_cost"),
        GPU,
        backends=BACKENDS,
        routers=1,
        seed=1,
        adversity=Adversity(brief=1),
    )
    experiment.run(
        [
            each._replace(at_s=each.at_s / faster, tenant=str(rng.randrange(clients)))
            for each in arrivals
        ]
    )
    assert experiment.known[-1].requests_total < 0.2 * len(arrivals)  # otherwise 0.38
