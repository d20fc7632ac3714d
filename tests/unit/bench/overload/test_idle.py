"""When an engine counts as idle while a request waits for it."""

from dataclasses import replace
from random import Random
from statistics import fmean

import pytest

from penstock.balancing.admission.queued_request import QueuedRequest, TooLate, Wait
from penstock.balancing.lease import Lease
from penstock.bench.overload.calls import Call
from penstock.bench.overload.idle import Idle
from penstock.bench.overload.mixes import H100
from penstock.bench.overload.site import Site
from penstock.bench.overload.world import World
from penstock.bench.sim.profiles import Gpu

SMALL = replace(H100, kv_tokens=4_096, max_num_seqs=4)


class Held(World):
    """Nothing but the first request is ever sent."""

    def __init__(self, profile: Gpu) -> None:
        super().__init__(Site((profile,)), enabled=True, seed=1)
        enter = self.admission.enter
        entered: list[QueuedRequest] = []

        def held(request: QueuedRequest, now_s: float) -> Lease | TooLate | None:
            entered.append(request)
            if len(entered) == 1:
                return enter(request, now_s)
            request.wait = Wait("p", request.ask.prompt_tokens, 0.0)
            return None

        def left(request: QueuedRequest, now_s: float) -> None:
            request.wait = None

        self.admission.enter = held  # type: ignore[method-assign]
        self.admission.leave = left  # type: ignore[method-assign]


def share(profile: Gpu, first: Call, second: Call) -> float:
    """Of the second from 1 to 2, while the first one runs."""
    world = Held(profile)
    idle = Idle(world)
    world.run([first, second], 2.5)
    return idle.share(1.0, 2.0)


def call(at_s: float, prompt_tokens: int = 100, output_tokens: int = 100) -> Call:
    return Call(at_s, prompt_tokens, output_tokens, patience_s=60.0, retries=0)


def test_an_engine_with_room_is_idle() -> None:
    assert share(SMALL, call(0.0), call(0.5)) == pytest.approx(1.0, abs=0.03)


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
        world = Held(SMALL)
        idle = Idle(world)
        world.run([call(0.0), replace(call(0.5), patience_s=wait_s)], 2.5)
        return idle.share(0.0, 1.0)

    assert waited_s(0.015) == 0.0
    assert waited_s(0.035) == 0.02


def test_watching_changes_next_to_nothing() -> None:
    """A look at a backend lets its prefills end by the clock, some milliseconds sooner. So another
    request may be sent first."""

    def mean_ttft_s(*, watched: bool) -> float:
        world = World(Site((SMALL,)), enabled=True, seed=1)
        if watched:
            Idle(world)
        rng = Random(1)
        calls = [call(rng.uniform(0.0, 5.0), rng.randint(10, 1_000)) for _ in range(60)]
        log = world.run(sorted(calls, key=lambda each: each.at_s), 60.0)
        return fmean(each.ttft_s for each in log.calls)

    assert mean_ttft_s(watched=True) == pytest.approx(mean_ttft_s(watched=False), 0.02)
