"""The longest prompt that fits, against a cache that is filled token by token."""

from random import Random

import pytest

from penstock.balancing.admission.kv_peak import spare_tokens

Streams = list[tuple[int, int]]  # tokens still to come, tokens held now


def most_held(streams: Streams, prompt: int, left: int) -> int:
    """The most that is held in any step until the new one ends. Ends give back after a step."""
    held = []
    for step in range(left + 1):
        others = sum(tokens + step for to_come, tokens in streams if to_come >= step)
        held.append(others + prompt + step)
    return max(held)


def drawn(rng: Random) -> Streams:
    longest = rng.choice([3, 30, 120])  # of small numbers many are equal
    return [(rng.randint(0, longest), rng.randint(1, 500)) for _ in range(rng.randint(1, 12))]


@pytest.mark.parametrize("seed", range(10))
def test_a_prompt_of_the_spare_fits_until_it_ends_and_one_token_more_does_not(seed: int) -> None:
    rng = Random(seed)
    for _ in range(50):
        streams, left = drawn(rng), rng.randint(0, 120)
        capacity = rng.randint(5_000, 9_000)
        spare = spare_tokens(streams, left, capacity)
        assert spare == int(spare)
        assert most_held(streams, int(spare), left) <= capacity
        assert most_held(streams, int(spare) + 1, left) > capacity


@pytest.mark.parametrize("seed", range(20))
def test_the_new_one_may_be_the_longest_or_the_shortest(seed: int) -> None:
    rng = Random(seed)
    streams = drawn(rng)
    ends = [left for left, _ in streams]
    for left in (0, min(ends), max(ends), max(ends) + 1, max(ends) + 50):
        spare = int(spare_tokens(streams, left, 8_000))
        assert most_held(streams, spare, left) <= 8_000 < most_held(streams, spare + 1, left)


def test_an_empty_cache_has_room_for_all_but_the_answer() -> None:
    assert spare_tokens([], 100, 1_000) == 900
    assert spare_tokens([], 0, 1_000) == 1_000


def test_what_runs_over_after_its_end_is_no_reason_to_refuse_it() -> None:
    growing = [(1_000, 300), (1_000, 300)]  # 2,600 at their end
    assert spare_tokens(growing, 10, 1_000) == 1_000 - 600 - 3 * 10


def test_a_full_cache_has_less_than_nothing() -> None:
    assert spare_tokens([(5, 600), (5, 600)], 5, 1_000) < 0
