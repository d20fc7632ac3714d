"""When an engine counts as idle while a request waits for it."""

from dataclasses import replace
from random import Random

import pytest

from penstock.bench.overload.calls import Call
from penstock.bench.overload.idle import Idle
from penstock.bench.overload.mixes import H100
from penstock.bench.overload.world import Class, Site, World
from penstock.bench.sim.profiles import Gpu

SMALL = replace(H100, kv_tokens=4_096, max_num_seqs=4)


def held(profile: Gpu) -> World:
    """Its engine runs more, but is given one request at a time."""
    world = World(Site((profile,)), enabled=True, seed=1, classes=(Class(60.0),) * 2)
    world.backends[0].max_requests = 1
    return world


def share(profile: Gpu, first: Call, second: Call) -> float:
    """Of the second from 1 to 2, while the first one runs."""
    world = held(profile)
    idle = Idle(world)
    world.run([first, second], 2.5)
    assert world.admission.waiting == 1
    return idle.share(1.0, 2.0)


def call(at_s: float, prompt_tokens: int = 100, output_tokens: int = 100) -> Call:
    return Call(at_s, prompt_tokens, output_tokens, patience_s=60.0, retries=0)


def test_an_engine_with_room_is_idle() -> None:
    assert share(SMALL, call(0.0, 100, 1_000), call(0.5)) == pytest.approx(1.0, abs=0.03)


def test_one_without_a_place_is_not() -> None:
    full = replace(SMALL, max_num_seqs=1)
    assert share(full, call(0.0, 100, 1_000), call(0.5)) == 0.0


def test_one_whose_cache_is_going_to_be_full_is_not() -> None:
    assert share(SMALL, call(0.0, 100, 3_500), call(0.5, 1_000, 100)) == 0.0
    assert share(SMALL, call(0.0, 100, 1_500), call(0.5, 1_000, 100)) > 0.9


def test_one_that_prefills_for_long_is_not() -> None:
    assert share(H100, call(0.5, 100_000), call(0.9)) == 0.0


def test_one_sample_alone_is_not_counted() -> None:
    def waited_s(wait_s: float) -> float:
        world = held(SMALL)
        idle = Idle(world)
        world.run([call(0.0), replace(call(0.5), patience_s=wait_s)], 2.5)
        return idle.share(0.0, 1.0)

    assert waited_s(0.015) == 0.0
    assert waited_s(0.035) == 0.02


def test_watching_changes_nothing() -> None:
    def ttfts_s(*, watched: bool) -> list[float]:
        world = World(Site((SMALL,)), enabled=True, seed=1)
        if watched:
            Idle(world)
        rng = Random(1)
        calls = [call(rng.uniform(0.0, 5.0), rng.randint(10, 1_000)) for _ in range(60)]
        log = world.run(sorted(calls, key=lambda each: each.at_s), 60.0)
        return [each.ttft_s for each in log.calls]

    assert ttfts_s(watched=True) == ttfts_s(watched=False)
