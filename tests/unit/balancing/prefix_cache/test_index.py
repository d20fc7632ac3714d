"""What a backend's prefix cache is thought to hold."""

from random import Random

from penstock.balancing.prefix_cache.cache import PrefixIndex


def prompt(name: int, length: int) -> tuple[int, ...]:
    return tuple(name * 10_000 + i for i in range(length))


def test_nothing_is_held_at_first() -> None:
    assert PrefixIndex(10).held(prompt(1, 5)) == 0
    assert PrefixIndex(10).held(()) == 0


def test_the_longest_common_beginning_is_found() -> None:
    index = PrefixIndex(1_000)
    index.use(prompt(1, 100))
    for common in (0, 1, 2, 3, 49, 50, 99, 100):
        asked = prompt(1, common) + prompt(2, 60)
        assert index.held(asked) == common
    assert index.held(prompt(1, 40)) == 40


def test_as_many_blocks_as_the_engine_holds_are_remembered_and_at_most_twice_as_many() -> None:
    index = PrefixIndex(100)
    for name in range(50):
        index.use(prompt(name, 10))
        assert len(index) <= 200
        last = [index.held(prompt(each, 10)) for each in range(max(0, name - 9), name + 1)]
        assert all(held == 10 for held in last)
    assert index.held(prompt(0, 10)) == 0


def test_what_is_used_again_stays() -> None:
    index = PrefixIndex(100)
    for name in range(1, 200):
        index.use(prompt(0, 10))
        index.use(prompt(name, 10))
    assert index.held(prompt(0, 10)) == 10


def test_a_prompt_longer_than_the_cache_is_held_as_far_as_it_goes() -> None:
    index = PrefixIndex(8)
    index.use(prompt(1, 100))
    assert index.held(prompt(1, 100)) == 8
    assert len(index) <= 16


def test_a_restarted_engine_holds_nothing() -> None:
    index = PrefixIndex(100)
    index.use(prompt(1, 10))
    index.clear()
    assert index.held(prompt(1, 10)) == len(index) == 0


def test_halving_finds_what_a_walk_finds() -> None:
    rng = Random(1)
    index = PrefixIndex(200)
    for _ in range(500):
        asked = prompt(rng.randrange(8), rng.randrange(0, 80))
        known = index._young | index._old
        walked = next((i for i, block in enumerate(asked) if block not in known), len(asked))
        assert index.held(asked) == walked
        index.use(asked)


def test_what_is_used_again_takes_no_more_room() -> None:
    """A prompt of most of the cache, again and again, drives nothing else out."""
    index = PrefixIndex(100)
    small, large = tuple(range(30)), tuple(range(1_000, 1_060))
    index.use(small)
    for _ in range(10):
        index.use(large)
    assert (index.held(small), index.held(large)) == (30, 60)
