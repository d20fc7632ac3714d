"""Requests without progress: when they bring a deep probe, and what it waits for."""

from penstock.balancing.backend import State
from penstock.health.stall import STALL_S
from tests.unit.health.watched import HUNG, Scene


async def test_requests_without_progress_bring_the_deep_probe_forward(scene: Scene) -> None:
    scene.stream()
    await scene.turn()
    scene.ask.deep_is = HUNG
    await scene.turn(step_s=STALL_S + 0.1)
    assert scene.ask.deep_asked == 1
    assert scene.backend.state is State.SUSPECT
    assert await scene.turn() is State.EJECTED


async def test_a_long_prefill_is_no_stall() -> None:
    scene = Scene(deep_interval_s=3_000.0)
    await scene.turn()
    scene.lease(tokens=72_000)  # 10.2 s by the prior
    await scene.turn()
    await scene.turn(step_s=11.0)
    assert scene.ask.deep_asked == 0
    await scene.turn(step_s=2.0)
    assert scene.ask.deep_asked == 1
    assert scene.ask.deep_timeout_s == 4.0


async def test_a_deep_probe_waits_for_what_is_left_of_the_prompt_at_work(scene: Scene) -> None:
    scene.now_s += 10.0
    await scene.turn()
    scene.ask.deep_asked = 0
    scene.lease(tokens=100_000)
    await scene.turn(step_s=2.0)
    await scene.turn(step_s=10.0)
    assert scene.ask.deep_asked == 1
    assert 0.0 <= scene.ask.deep_timeout_s - 4.0 <= 8.0


async def test_prompts_that_pile_up_at_a_zombie_buy_it_no_time(scene: Scene) -> None:
    scene.ask.deep_is = HUNG
    began_s = scene.now_s

    def wait() -> None:
        scene.now_s += scene.ask.deep_timeout_s

    scene.ask.during_deep = wait
    while scene.backend.state is not State.EJECTED:
        scene.lease(tokens=20_000)  # 2 s each at the prior rate; 20 of them
        await scene.turn(step_s=1.0)
        assert scene.now_s - began_s <= 15.0
    assert scene.backend.reason == "hung"


async def test_progress_during_a_deep_probe_forgives_it(scene: Scene) -> None:
    lease = scene.stream()
    await scene.turn()
    scene.ask.deep_is = HUNG
    scene.ask.during_deep = lambda: lease.tokens(1)
    assert await scene.turn(5, step_s=20.0) is State.READY
    assert scene.ask.deep_asked >= 4


async def test_streams_that_progress_spare_the_deep_probe(scene: Scene) -> None:
    lease = scene.lease()
    for _ in range(50):
        lease.tokens(1)
        await scene.turn(step_s=2.0)
    assert scene.ask.deep_asked == 0
    lease.end(scene.now_s)
    await scene.turn(10, step_s=2.0)
    assert scene.ask.deep_asked >= 1
