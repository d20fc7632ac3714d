"""Splits: shares are kept, points that move take only what they must, and all replicas agree."""

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest

from penstock.balancing.routes.split import LINE, Split, place_of

USERS = [f"user-{number}" for number in range(100_000)]


def owners(weights: Sequence[float], route: str = "r") -> list[int]:
    split = Split(route, weights)
    return [split.owner(user) for user in USERS]


def moves(before: Sequence[float], after: Sequence[float]) -> dict[tuple[int, int], float]:
    """The percentage of the users that went from one target to another, by both."""
    pairs = Counter(zip(owners(before), owners(after), strict=True))
    return {pair: 100 * n / len(USERS) for pair, n in pairs.items() if pair[0] != pair[1]}


@pytest.mark.parametrize(
    "weights", [(95, 5), (90, 9, 1), (40, 30, 20, 10), (1, 1, 1, 1, 1, 1, 1), (0, 3, 1), (5, 0, 5)]
)
def test_each_target_gets_its_share(weights: Sequence[float]) -> None:
    found = Counter(owners(weights))
    for number, weight in enumerate(weights):
        share = weight / sum(weights)
        assert abs(found[number] / len(USERS) - share) < 0.005
        assert (found[number] == 0) == (weight == 0)


@pytest.mark.parametrize("canary", [0, 5, 10, 45, 50, 90, 95])
def test_five_points_move_five_percent_and_nobody_else(canary: int) -> None:
    moved = moves((100 - canary, canary), (95 - canary, canary + 5))
    assert set(moved) == {(0, 1)}
    assert moved[0, 1] == pytest.approx(5, abs=0.5)


def test_all_steps_of_a_canary_move_each_user_once() -> None:
    steps = [owners((100 - points, points)) for points in (0, 1, 5, 25, 50, 100)]
    for before, after in pairwise(steps):
        assert all(was == 0 or now == 1 for was, now in zip(before, after, strict=True))


FIRST = [80, 5, 5, 2, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        # Five points leave the others alone.
        ((80, 10, 10), (75, 10, 15), {(0, 2): 5}),
        ((80, 10, 10), (75, 15, 10), {(0, 1): 5}),
        ((5, 50, 45), (0, 55, 45), {(0, 1): 5}),
        ((95, 5), (5, 95), {(0, 1): 90}),
        # Points between two others move at most twice as many.
        ((80, 15, 5), (80, 5, 15), {(0, 2): 10, (1, 0): 10}),
        # A third target takes only its share.
        ((90, 10), (85, 10, 5), {(0, 2): 5}),
        # With the same weights as before, each share gets smaller, and only by that users go back.
        ((95, 5), (95, 5, 10), {(0, 2): 9.09, (1, 0): 100 * (5 / 100 - 5 / 110)}),
        # Further targets take from the first until zones meet.
        *[
            (FIRST, [75, *FIRST[1:to], FIRST[to] + 5, *FIRST[to + 1 :]], {(0, to): 5})
            for to in range(3, 8)
        ],
    ],
)
def test_only_those_move_that_must(
    before: Sequence[float], after: Sequence[float], moved: dict[tuple[int, int], float]
) -> None:
    assert moves(before, after) == pytest.approx(moved, abs=0.5)


def test_the_proportion_counts_and_not_the_sum() -> None:
    assert owners((95, 5)) == owners((9.5, 0.5)) == owners((1_000_000, 1_000_000 / 19))


def test_any_weights_fill_the_whole_line() -> None:
    rng = random.Random(5)
    for _ in range(500):
        weights = [rng.choice((0, 0.001, 1, 5, rng.random() * 100)) for _ in range(16)]
        if not sum(weights):
            continue
        split = Split("r", weights)
        ends, given = split._ends, split._owners
        assert ends == sorted(set(ends))
        assert ends[-1] == LINE
        lengths = Counter[int]()
        for begin, end, owner in zip([0, *ends], ends, given, strict=False):
            lengths[owner] += end - begin
        assert set(lengths) == {number for number, weight in enumerate(weights) if weight}
        for number, weight in enumerate(weights):
            assert lengths[number] / LINE == pytest.approx(weight / sum(weights), abs=1e-9)


def test_routes_and_mirrors_divide_independently() -> None:
    both = Counter(zip(owners((50, 50), "a"), owners((50, 50), "b"), strict=True))
    assert all(abs(n / len(USERS) - 0.25) < 0.01 for n in both.values())


@pytest.mark.once
def test_all_processes_agree() -> None:
    code = (
        "from penstock.balancing.routes.split import Split, place_of\n"
        "print([Split('r', (60, 30, 10)).owner(f'k{n}') for n in range(300)], place_of('é', 7))"
    )
    here = [Split("r", (60, 30, 10)).owner(f"k{n}") for n in range(300)], place_of("é", 7)
    for seed in ("1", "2"):
        told = subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True
        )
        assert told.stdout.decode().split() == f"{here[0]} {here[1]}".split()


def test_any_key_has_a_place() -> None:
    for key in ("", "\0", "\udcff", "x" * 100_000):
        assert 0 <= place_of(key, 2**64 - 1) < LINE
