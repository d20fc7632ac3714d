"""The two tests keep the error rates that they state, and see what they should."""

from math import exp, log
from random import Random

import pytest

from penstock.balancing.canary.sequential import (
    COMMON_BETS,
    COMMON_HARMLESS_BETS,
    RARE_BETS,
    RARE_HARMLESS_BETS,
    Harmless,
    Worse,
)

RUNS = 120
GROUPS = 12


def cell(rng: Random, number: int, share: float) -> dict[int, tuple[int, int]]:
    tally: dict[int, tuple[int, int]] = {}
    for _ in range(number):
        group = rng.randrange(GROUPS)
        requests, bad = tally.get(group, (0, 0))
        tally[group] = (requests + 1, bad + (rng.random() < share))
    return tally


def highest(rng: Random, worse: Worse, share: float, stable: float, cells: int) -> float:
    """The most evidence that a run shows, looked at after each cell."""
    most = 0.0
    for number in range(cells):
        n = rng.randrange(1, 6)
        both = cell(rng, n, share), cell(rng, 8 * n, stable)
        worse.add(*both, fresh=bool(number % 2))
        most = max(most, worse.evidence)
    return most


@pytest.mark.parametrize(
    ("bets", "share", "stable", "margin"),
    [(RARE_BETS, 0.02, 0.02, 0.0), (RARE_BETS, 0.011, 0.01, 0.001), (COMMON_BETS, 0.25, 0.25, 0.0)],
)
def test_an_equal_version_is_seldom_called_worse(
    bets: tuple[float, ...], share: float, stable: float, margin: float
) -> None:
    """At most one run of ten reaches ten, though each looks 80 times."""
    rng = Random(1)
    runs = [
        highest(rng, Worse(bets, 0.0, margin, strict=False), share, stable, 80) for _ in range(RUNS)
    ]
    assert sum(each >= log(10) for each in runs) <= 0.1 * RUNS


def test_the_mean_of_the_evidence_is_at_most_one() -> None:
    rng, found = Random(2), []
    for _ in range(1_500):
        worse = Worse((0.5,), 0.0, 0.0, strict=False)
        for _ in range(3):
            worse.add(cell(rng, 2, 0.3), cell(rng, 8, 0.3))
        found.append(exp(worse.evidence))
    assert sum(found) / len(found) <= 1.05


def test_harmless_keeps_its_error_rate() -> None:
    rng, passed = Random(3), 0
    for _ in range(RUNS):
        harmless = Harmless(RARE_HARMLESS_BETS, 0.05)
        most = 0.0
        for _ in range(60):
            harmless.add(cell(rng, 4, 0.06), cell(rng, 32, 0.01))
            most = max(most, harmless.plain_evidence)
        passed += most >= log(10)
    assert passed <= 0.1 * RUNS


def test_what_is_worse_is_seen_and_what_is_not_is_shown_to_be_harmless() -> None:
    rng = Random(4)
    worse, harmless = (
        Worse(RARE_BETS, 1 / 3, 0.0002, strict=False),
        Harmless(RARE_HARMLESS_BETS, 0.01),
    )
    for _ in range(250):
        worse.add(cell(rng, 5, 0.03), cell(rng, 40, 0.001))
        harmless.add(cell(rng, 5, 0.001), cell(rng, 40, 0.001))
    assert worse.common_evidence > log(1_000)
    assert harmless.common_evidence > log(20)


def test_without_the_loudest_group_nothing_is_left_of_what_one_group_shows() -> None:
    worse = Worse(RARE_BETS, 0.0, 0.0, strict=False)
    for _ in range(50):
        worse.add({0: (1, 1), 1: (1, 0)}, {2: (10, 0), 3: (10, 0)})
    assert worse.evidence > 50
    assert worse.common_evidence <= log(2)


def test_a_group_of_the_stable_versions_cannot_hide_that_the_canary_is_worse() -> None:
    worse = Worse(RARE_BETS, 0.0, 0.0, strict=False)
    for number in range(100):
        canary = {number % 5: (1, int(number % 10 < 5)), 6: (3, 0)}
        worse.add(canary, {7: (5, 5), 8: (10, 0), 9: (10, 0)})
    assert worse.common_evidence > 10.0


def test_one_group_in_favour_does_not_show_that_it_is_harmless() -> None:
    harmless = Harmless(RARE_HARMLESS_BETS, 0.01)
    for _ in range(400):
        harmless.add({0: (3, 0)}, {1: (10, 0), 2: (10, 0)})
    assert harmless.plain_evidence > log(20)
    assert harmless.common_evidence < log(20)


def test_with_as_many_requests_of_both_a_small_difference_shows() -> None:
    rng = Random(5)
    worse, harmless = Worse(COMMON_BETS, 0.0, 0.0, strict=True), Harmless(COMMON_HARMLESS_BETS, 0.0)
    for _ in range(100):
        worse.add(cell(rng, 40, 0.32), cell(rng, 40, 0.25))
        harmless.add(cell(rng, 40, 0.18), cell(rng, 40, 0.25))
    assert worse.common_evidence > log(100)
    assert harmless.common_evidence > log(20)
