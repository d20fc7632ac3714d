"""What `penstock status` says beside the table, from the listing of a real backend."""

from penstock.balancing.backend import AdminState, State
from penstock.health.probes import Outcome
from penstock.proxy.admin.fleet_listing import describe
from penstock.proxy.commands.status import ejected_of, set_aside, unlisted_of
from tests.unit.health.watched import HUNG, REFUSED, Scene


def told(scene: Scene) -> list[str]:
    watch = scene.watch
    return ejected_of(
        [describe(scene.backend, watch.last_probes, scene.now_s, to_return=watch.to_return())]
    )


async def ejected_twice() -> Scene:
    """The second ejection has a waiting time of about 10 s."""
    scene = Scene()
    await scene.turn()
    scene.watch.certain("unreachable")
    assert await scene.turn(2) is State.WARMING
    scene.ask.live_is = REFUSED
    assert await scene.turn() is State.EJECTED
    return scene


async def test_an_ejected_backend_that_answers_again_tells_what_it_waits_for() -> None:
    scene = await ejected_twice()
    assert told(scene) == []  # its probes fail: the reason says why
    scene.ask.live_is = Outcome()
    scene.ask.deep_is = HUNG
    begins = "b0 passes its probes. Before it returns: "
    said = []
    for step_s in (0.0, 4.0, 30.0):
        assert await scene.turn(step_s=step_s) is State.EJECTED
        said += told(scene)
    assert said == [
        f"{begins}1 more passed probe, 11 s of its waiting time, a passed deep probe.",
        f"{begins}7 s of its waiting time, a passed deep probe.",
        f"{begins}a passed deep probe.",
    ]
    scene.ask.deep_is = Outcome()
    assert await scene.turn() is State.WARMING
    assert told(scene) == []


async def test_nothing_is_awaited_of_a_backend_in_maintenance() -> None:
    scene = await ejected_twice()
    scene.ask.live_is = Outcome()
    await scene.turn()
    assert told(scene)
    scene.backend.admin_state = AdminState.MAINT
    assert told(scene) == []


async def test_a_backend_that_is_ejected_on_suspicion_may_still_serve() -> None:
    scene = Scene()
    await scene.turn()
    scene.ask.deep_is = HUNG
    assert await scene.turn(12, step_s=10.0) is State.EJECTED
    begins = "b0 is ejected on suspicion only."
    assert any(line.startswith(begins) for line in told(scene))
    scene.watch.certain("unreachable")
    assert not any(line.startswith(begins) for line in told(scene))


def test_a_fleet_that_the_operator_took_out_tells_how_to_go_on() -> None:
    fleet = [
        {"name": "gpu-0", "admin_state": "drain", "can_serve": False},
        {"name": "gpu-1", "admin_state": "ready", "can_serve": False},
        {"name": "gpu-2", "admin_state": "maint", "can_serve": False},
    ]
    said = "In drain or maint: gpu-0, gpu-2. To go on, run: penstock ready gpu-0"
    assert set_aside(fleet) == [said]
    fleet[1]["can_serve"] = True
    assert set_aside(fleet) == []


async def test_a_pool_whose_models_nobody_tells_is_named_with_the_remedy() -> None:
    scene = Scene()
    scene.ask.ready_is = Outcome()  # its key is refused, or it has no such list
    await scene.turn()
    backend = scene.backend
    assert backend.can_serve
    (line,) = unlisted_of([describe(backend, {}, 0.0)])
    assert line.startswith(f"{backend.pool}: ")
    assert "`pools[].models`" in line
    backend.models = {"m": b"{}"}
    assert not unlisted_of([describe(backend, {}, 0.0)])
    backend.models, backend.state = None, State.EJECTED
    assert not unlisted_of([describe(backend, {}, 0.0)])
