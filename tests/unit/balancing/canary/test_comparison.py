"""What is compared with what, and what counts."""

from math import isclose
from random import Random
from typing import Any

import pytest

from penstock.balancing.canary.comparison import Comparison
from penstock.balancing.canary.metrics import Ended, Ending, Metric, metrics_of
from penstock.balancing.canary.usual import ByKind, Usual
from penstock.conf.canary import JudgeSettings

METRICS = {metric.name: metric for metric in metrics_of(JudgeSettings())}


def ended(ending: Ending = Ending.SERVED, *, canary: bool = False, **fields: object) -> Ended:
    made = Ended(ending, canary=canary, client="c")
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def compared(metric: Metric, *requests: Ended) -> Comparison:
    """All of them at one moment, and compared."""
    comparison = Comparison(metric, 0.01, ByKind(Usual))
    for number, each in enumerate(requests):
        comparison.add(each, number % 16, 0.0)
    comparison.advance(60.0)
    return comparison


def test_the_parts_of_the_chance_add_up_to_one() -> None:
    assert isclose(sum(each.part for each in METRICS.values()), 1.0)


# Which requests count for each metric, and which of them are bad.
COUNTS = {
    "errors": {"served": 0, "error": 1, "broken": 0, "empty": 0},
    "hung": {"served": 0, "hung": 1, "broken": 0, "empty": 0},
    "broken": {"served": 0, "broken": 1},
    "empty": {"served": 0, "empty": 1},
    "refused": {"served": 0, "refused": 1, "broken": 0, "empty": 0},
}


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("ending", list(Ending))
def test_which_ends_are_bad(name: str, ending: Ending) -> None:
    wanted = COUNTS[name].get(ending.value)
    assert METRICS[name].read(ended(ending)) == (None if wanted is None else float(wanted))


def test_only_requests_of_one_kind_are_compared() -> None:
    short: dict[str, Any] = {"prompt_tokens": 300}
    long: dict[str, Any] = {"prompt_tokens": 30_000}
    errors = METRICS["errors"]
    apart = compared(errors, ended(Ending.ERROR, canary=True, **long), *[ended(**short)] * 20)
    assert apart.canary == [0, 0]
    together = compared(errors, ended(Ending.ERROR, canary=True, **long), *[ended(**long)] * 20)
    assert together.canary == [1, 1]
    plain = ended(Ending.ERROR, canary=True, stream=False)
    assert compared(errors, plain, *[ended()] * 20).canary == [0, 0]


def test_requests_of_different_times_are_not_compared() -> None:
    comparison = Comparison(METRICS["errors"], 0.01, ByKind(Usual))
    for _ in range(20):
        comparison.add(ended(), 0, 0.0)
    comparison.advance(61.0)
    comparison.add(ended(Ending.ERROR, canary=True), 0, 62.0)
    comparison.advance(130.0)
    assert comparison.canary == [0, 0]


def test_a_cell_is_compared_soon_if_it_has_enough_requests() -> None:
    comparison = Comparison(METRICS["errors"], 0.01, ByKind(Usual))
    for number in range(20):
        comparison.add(ended(canary=number == 0), 0, 0.0)
    comparison.advance(9.9)
    assert comparison.stable == [0, 0]
    comparison.advance(10.0)
    assert (comparison.canary, comparison.stable) == ([1, 0], [19, 0])


def test_times_are_told_as_their_ratio_within_kinds() -> None:
    comparison, rng = Comparison(METRICS["ttft"], 0.01, ByKind(Usual)), Random(1)
    for number in range(4_000):
        size, canary = rng.choice((300, 30_000)), number % 8 == 0
        if canary and size == 300 and rng.random() < 0.5:
            continue  # the canary has longer prompts
        ttft_s = size / 10_000 * rng.lognormvariate(0.0, 0.1) * (1.1 if canary else 1.0)
        comparison.add(ended(canary=canary, prompt_tokens=size, ttft_s=ttft_s), 0, number / 20)
        comparison.advance(number / 20)
    assert comparison.words().startswith("first tokens take 1.1")


def test_what_is_usual_follows_what_a_quarter_exceeds() -> None:
    usual, rng = Usual(), Random(1)
    for _ in range(2_000):
        usual.add(rng.gauss(0.0, 0.5))
    assert abs(usual.late_log - 0.34) < 0.15
    for _ in range(200):
        usual.add(rng.gauss(0.7, 0.5))
    assert abs(usual.late_log - 1.04) < 0.25


def test_who_left_counts_if_its_time_is_known_or_was_late_already() -> None:
    usual = ByKind(Usual)
    for _ in range(50):
        usual[METRICS["ttft"].kind(ended())].add(0.0)  # about a second

    def counted(**fields: Any) -> list[int]:
        comparison = Comparison(METRICS["ttft"], 0.01, usual)
        comparison.add(ended(ttft_s=1.0), 0, 0.0)
        comparison.add(ended(Ending.LEFT, canary=True, **fields), 1, 0.0)
        comparison.advance(60.0)
        return comparison.canary

    assert counted(ttft_s=0.1) == [1, 0]
    assert counted(ttft_s=9.0) == [1, 1]
    assert counted(waited_s=0.1) == [0, 0]
    assert counted(waited_s=9.0) == [1, 1]
