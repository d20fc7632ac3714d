"""A backend in maintenance is left alone, and afterwards it is unknown."""

import pytest

from penstock.balancing.backend import AdminState, State
from penstock.balancing.outliers.failures import charge_refusal
from penstock.health.machine import REQUESTS_FALL
from penstock.health.probes import Outcome, Task
from tests.unit.health.watched import REFUSED, Scene


async def test_a_backend_in_maintenance_is_left_alone(scene: Scene) -> None:
    scene.backend.admin_state = AdminState.MAINT
    scene.ask.live_is = REFUSED
    assert await scene.turn(5, step_s=2.0) is State.READY
    assert not scene.backend.fit


async def test_after_maintenance_it_is_unknown(caplog: pytest.LogCaptureFixture) -> None:
    """It may be another server: one pass lets it in, as at the start."""
    scene = Scene()
    scene.watch.resume()  # as the monitor begins
    await scene.turn()
    scene.backend.admin_state = AdminState.MAINT
    await scene.turn()
    scene.backend.admin_state = AdminState.READY
    scene.watch.resume()
    assert (scene.backend.state, scene.backend.reason) == (State.STARTING, "unprobed")
    assert "backend not ready yet name=b0 reason=unprobed" not in caplog.messages
    scene.ask.live_is = REFUSED
    assert await scene.turn(5, step_s=2.0) is State.STARTING
    scene.ask.live_is = Outcome()
    assert await scene.turn() is State.READY
    assert scene.backend.reason == ""


async def test_maintenance_pardons_what_requests_told_of_it() -> None:
    """Refusals of a flag that is repaired, and failures of a server that is another now."""
    scene = Scene()
    scene.ask.task_is = Task.NONE
    await scene.turn()
    await scene.turn(step_s=20.0)  # no deep probe can tell
    backend = scene.backend
    scene.watch.refused(key=False)
    for _ in range(REQUESTS_FALL - 1):
        scene.lease().fail(scene.now_s)
    for client in ("a", "b") * 20:
        charge_refusal(scene.lease(client=client).backend, client, scene.peers[1:], scene.now_s)
    scene.watch.certain("unreachable")
    scene.watch.resume()
    scene.ask.task_is = Task.COMPLETION
    assert await scene.turn() is State.READY
    assert backend.penalty.read(scene.now_s) == 0.0
    for _ in range(REQUESTS_FALL):
        scene.lease(client="a").fail(scene.now_s)
        scene.watch.requests_failed()
    assert backend.fit  # one client's word, and no probe's yet
    assert not charge_refusal(scene.lease(client="c").backend, "c", scene.peers[1:], scene.now_s)


async def test_maintenance_pardons_ejections(scene: Scene) -> None:
    for _ in range(3):
        scene.watch.certain("unreachable")
    assert scene.backend.state is State.EJECTED
    scene.watch.resume()
    assert await scene.turn() is State.READY
