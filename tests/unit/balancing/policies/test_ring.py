"""The ring: even, stable, and moving no more than it must."""

from collections import Counter

import pytest

from penstock.balancing.policies.session import POINTS, POINTS_MAX, Ring

KEYS = [f"session-{number}" for number in range(10_000)]


def ring(*names: str) -> Ring:
    return Ring(dict.fromkeys(names, 1.0))


def homes(of: Ring) -> dict[str, str]:
    return {key: of.home(key) for key in KEYS}


def test_a_fifth_of_four_moves_at_most_a_quarter_and_only_to_itself() -> None:
    before, after = homes(ring("a", "b", "c", "d")), homes(ring("a", "b", "c", "d", "e"))
    moved = [key for key in KEYS if before[key] != after[key]]
    print(f"a fifth backend took {len(moved) / len(KEYS):.1%} of {len(KEYS)} sessions")
    assert {after[key] for key in moved} == {"e"}
    assert 0.15 * len(KEYS) < len(moved) <= 0.25 * len(KEYS)


@pytest.mark.parametrize("gone", "abcde")
def test_who_leaves_moves_only_its_own_and_to_everybody(gone: str) -> None:
    before = homes(ring(*"abcde"))
    after = homes(ring(*set("abcde") - {gone}))
    assert all((before[key] == after[key]) == (before[key] != gone) for key in KEYS)
    assert len({after[key] for key in KEYS if before[key] == gone}) == 4


def test_a_walk_meets_everyone_once_and_next_is_who_takes_over() -> None:
    whole = ring(*"abcde")
    for key in KEYS[:500]:
        walk = list(whole.walk(key))
        assert sorted(walk) == list("abcde")
        assert ring(*set("abcde") - {walk[0]}).home(key) == walk[1]


def test_shares_are_even_and_follow_the_weights() -> None:
    even = Counter(homes(ring(*"abcd")).values())
    assert all(0.2 < even[name] / len(KEYS) < 0.3 for name in "abcd")
    seen = Counter(homes(Ring({"one": 1.0, "three": 3.0})).values())
    assert 0.7 < seen["three"] / len(KEYS) < 0.8


def test_the_order_of_the_configuration_does_not_matter() -> None:
    assert homes(Ring({"a": 1.0, "b": 2.0})) == homes(Ring({"b": 2.0, "a": 1.0}))


def test_the_homes_are_these_for_ever() -> None:
    """Restarts and replicas must agree, and a new version must not move every session."""
    found = "".join(map(ring(*"abcd").home, KEYS[:40]))
    assert found == "dcabaddcaaaabdcbadbcabcabbbbcdbdbdccadba"


def test_a_light_one_has_a_place_and_the_points_are_bounded() -> None:
    assert "tiny" in Ring({"big": 1.0, "tiny": 1e-6}).walk("any")
    assert len(ring("a")) == POINTS
    heavy = Ring({"a": 1_000.0, "b": 1_000.0, "c": 500.0})
    assert len(heavy) <= 5 * POINTS
    assert 0.35 < Counter(homes(heavy).values())["a"] / len(KEYS) < 0.45
    assert len(Ring({str(number): 1.0 for number in range(2_000)})) <= POINTS_MAX


def test_heavy_weights_move_no_more_sessions_than_light_ones() -> None:
    before = homes(Ring({str(number): 100.0 for number in range(10)}))
    after = homes(Ring({str(number): 100.0 for number in range(11)}))
    moved = [key for key in KEYS if before[key] != after[key]]
    assert all(after[key] == "10" for key in moved)
    assert 0.05 < len(moved) / len(KEYS) < 0.15


def test_any_text_is_a_key() -> None:
    for key in ("", "é", "\ud800", "x" * 100_000):
        assert ring(*"abc").home(key) in "abc"
