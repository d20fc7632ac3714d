"""Those who are back help at once: slow start bounds what they may lose, not what they do."""

from random import Random

import pytest

from penstock.bench.routing.cell import maker
from penstock.bench.routing.experiment import OUT_S, Adversity, Experiment
from penstock.bench.routing.generators import uniform
from penstock.bench.routing.outcome import Outcome
from penstock.bench.routing.trace import Arrival, speedup
from penstock.bench.sim.profiles import GPUS

GPU = GPUS["70b-4xh100"]
WINDOW_S = 120.0


class Later(Outcome):
    """The first tokens of those who came in the 30 s after the return."""

    def __init__(self, backends: int, back_s: float) -> None:
        super().__init__(backends)
        self._back_s = back_s
        self.seen: list[float] = []

    def add(self, arrival: Arrival, ttft_s: float, end_s: float, cached_tokens: int) -> None:
        super().add(arrival, ttft_s, end_s, cached_tokens)
        if 0.0 <= arrival.at_s - self._back_s < 30.0:
            self.seen.append(ttft_s)


def mean_ttft_s(backends: int, out: int, load: float, policy: str = "token_cost") -> float:
    """Of the 30 s after so many are back."""
    arrivals = uniform(WINDOW_S, Random(1))
    # The window is as long at any load: more of the same in it.
    count = round(speedup(arrivals, GPU, backends, load))
    arrivals = sorted(each for seed in range(count) for each in uniform(WINDOW_S, Random(seed + 1)))
    experiment = Experiment(
        maker(policy),
        GPU,
        backends=backends,
        routers=1,
        seed=1,
        adversity=Adversity(out=out),
    )
    later = Later(backends, arrivals[-1].at_s / 2 + OUT_S)
    experiment.outcome = later
    experiment.run(arrivals)
    return sum(later.seen) / len(later.seen)


@pytest.mark.parametrize(
    ("backends", "out", "load", "bound_s"),
    [(8, 6, 0.6, 0.6), (8, 1, 0.8, 0.6)],
)
def test_who_is_back_takes_from_the_queues_of_the_others(
    backends: int, out: int, load: float, bound_s: float
) -> None:
    mean_s = mean_ttft_s(backends, out, load)
    print(f"{out} of {backends} back at load {load}: mean TTFT {mean_s:.2f} s")
    assert mean_s < bound_s


def test_who_is_back_beside_one_other_helps_as_one_who_knows_all_would_let_it() -> None:
    """One of two was out at more than its peer's capacity: the queue it left takes its time.

    The oracle keeps to slow start too, so the figure has a bound of its own.
    """
    mean_s, oracle_s = mean_ttft_s(2, 1, 0.6), mean_ttft_s(2, 1, 0.6, "oracle")
    print(f"1 of 2 back at load 0.6: mean TTFT {mean_s:.2f} s, the oracle's {oracle_s:.2f} s")
    assert mean_s < min(2.0, 1.05 * oracle_s)
