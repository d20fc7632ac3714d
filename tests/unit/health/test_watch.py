"""The watch over a backend: what turns and requests do to its state."""

import pytest

from penstock.balancing.backend import AdminState, State
from penstock.balancing.engine_report import EngineReport
from penstock.balancing.outliers.failures import charge_refusal
from penstock.conf.health import DeepProbeSettings, HealthSettings
from penstock.health.machine import REQUESTS_FALL
from penstock.health.probes import Outcome, Task
from tests.unit.health.watched import HUNG, REFUSED, TIMEOUT, Scene


async def test_one_pass_is_enough_at_first_and_tells_the_models() -> None:
    scene = Scene()
    assert await scene.turn() is State.READY
    assert scene.backend.models == {"m": b"{}"}
    assert scene.ask.deep_asked == 0


async def test_a_pools_own_models_must_be_served() -> None:
    scene = Scene(models=("other",))
    assert await scene.turn(3) is State.STARTING
    scene.ask.ready_is = Outcome(models={"m": b"{}", "other": b"{}"})
    assert await scene.turn() is State.READY


async def test_a_stopped_server_is_out_after_fall_probes(scene: Scene) -> None:
    scene.ask.live_is = TIMEOUT
    assert await scene.turn(2) is State.SUSPECT
    assert scene.backend.fit
    assert await scene.turn() is State.EJECTED
    assert not scene.backend.doubted


async def test_a_timeout_while_streams_progress_is_load(scene: Scene) -> None:
    lease = scene.stream()
    scene.ask.live_is = TIMEOUT
    scene.ask.during_live = lambda: lease.tokens(1)
    assert await scene.turn(10) is State.READY
    scene.ask.during_live = lambda: None
    assert await scene.turn(3) is State.EJECTED


async def test_a_refusal_that_a_request_met_is_certain() -> None:
    scene = Scene(1)
    await scene.turn()
    scene.watch.certain("unreachable")
    assert scene.backend.state is State.EJECTED
    assert scene.backend.reason == "unreachable"
    assert not scene.backend.doubted


async def test_a_zombie_is_found_by_deep_probes(scene: Scene) -> None:
    scene.ask.deep_is = HUNG
    turns = 0
    while await scene.turn(step_s=2.0) is not State.EJECTED:
        turns += 1
        assert turns < 10
    assert scene.backend.reason == "hung"
    assert scene.backend.doubted
    assert scene.ask.deep_asked == 2


async def test_a_draining_server_is_out_at_once_and_not_back_by_its_health(scene: Scene) -> None:
    scene.watch.certain("draining")
    scene.ask.deep_is = Outcome("draining", certain=True)
    assert await scene.turn(30, step_s=2.0) is State.EJECTED
    assert scene.backend.reason == "draining"
    scene.ask.deep_is = Outcome()
    assert await scene.turn(2) is State.WARMING


async def test_an_engine_that_sleeps_is_not_asked_for_work(scene: Scene) -> None:
    scene.backend.report = EngineReport(at_s=scene.now_s, awake=False)
    scene.watch.certain("asleep")
    assert await scene.turn(4) is State.EJECTED
    assert scene.backend.reason == "asleep"
    assert scene.ask.deep_asked == 0
    scene.backend.report = EngineReport(at_s=scene.now_s, awake=True)
    assert await scene.turn() is State.WARMING


async def test_back_through_a_deep_pass_then_slow_start(scene: Scene) -> None:
    scene.watch.certain("unreachable")
    assert await scene.turn() is State.EJECTED
    assert await scene.turn() is State.WARMING
    assert scene.ask.deep_asked == 1
    assert scene.backend.slow_start is not None
    assert await scene.turn(step_s=29.0) is State.WARMING
    assert await scene.turn(step_s=1.0) is State.READY
    assert scene.backend.slow_start is None


async def test_a_busy_answer_lets_it_back(scene: Scene) -> None:
    """A key that we do not have, a queue that others fill: it works, and slow start bounds it."""
    scene.watch.certain("unreachable")
    scene.ask.deep_is = Outcome("status_401", busy=True)
    assert await scene.turn(2) is State.WARMING


async def test_a_busy_answer_to_a_deep_probe_says_nothing_and_brings_no_other_forward(
    scene: Scene,
) -> None:
    scene.ask.deep_is = Outcome("status_503", busy=True)
    assert await scene.turn(20, step_s=2.0) is State.READY
    assert 3 <= scene.ask.deep_asked <= 5


async def test_a_task_without_a_probe_is_known_by_its_requests() -> None:
    scene = Scene()
    scene.ask.task_is = Task.NONE
    await scene.turn()
    await scene.turn(6, step_s=2.0)  # the task is found out
    scene.lease()
    assert await scene.turn(29, step_s=2.0) is State.READY
    assert await scene.turn(4, step_s=2.0) is State.EJECTED
    assert scene.backend.reason == "hung"


async def test_another_kind_of_server_may_come_back(scene: Scene) -> None:
    await scene.turn(12, step_s=2.0)
    scene.watch.certain("unreachable")
    await scene.turn(2)
    assert scene.ask.tasks_were[0] is None
    assert set(scene.ask.tasks_were[1:-1]) == {Task.COMPLETION}
    assert scene.ask.tasks_were[-1] is None


async def test_a_reason_is_told_from_the_start(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    assert scene.backend.reason == "loading"
    for outcome, reason in (
        (Outcome("status_503"), "loading"),
        (REFUSED, "unreachable"),
        (Outcome("unresolved"), "unresolved"),
        (TIMEOUT, "loading"),
    ):
        scene.ask.live_is = outcome
        caplog.clear()
        await scene.turn(3)
        assert (scene.backend.state, scene.backend.reason) == (State.STARTING, reason)
        lines = [f"backend not ready yet name=b0 reason={reason}"]  # once
        assert caplog.messages == ([] if reason == "loading" else lines)
    scene.ask.live_is = Outcome()
    scene.ask.ready_is = Outcome("no_models")
    await scene.turn()
    assert (scene.backend.state, scene.backend.reason) == (State.STARTING, "no_models")


async def test_one_probe_that_is_late_ends_no_probation() -> None:
    for late in ("live", "deep"):
        scene = Scene()
        await scene.turn()
        scene.watch.certain("unreachable")
        assert await scene.turn(2) is State.WARMING
        if late == "live":
            scene.ask.live_is = TIMEOUT
            assert await scene.turn() is State.WARMING
        else:
            scene.ask.deep_is = HUNG
            assert await scene.turn(step_s=15.0) is State.WARMING
            assert scene.ask.deep_asked == 2
        assert await scene.turn() is State.EJECTED


async def test_what_returns_is_forgiven(scene: Scene) -> None:
    scene.fail(REQUESTS_FALL)
    assert scene.backend.state is State.EJECTED
    assert scene.backend.penalty.read(scene.now_s) > 20.0
    while await scene.turn(step_s=0.5) is State.EJECTED:
        assert scene.now_s < 1_020.0
    assert scene.backend.penalty.read(scene.now_s) == 0.0


async def test_other_settings_begin_with_the_next_turn_and_forget_nothing() -> None:
    scene = Scene(deep_interval_s=3_000.0)
    await scene.turn()
    scene.ask.live_is = TIMEOUT
    assert await scene.turn(2) is State.SUSPECT  # two failures of the three that eject
    deep = DeepProbeSettings(interval_s=5.0)
    scene.watch.reconfigure(scene.peers, [], HealthSettings(fall=4, rise=1, deep=deep))
    assert await scene.turn() is State.SUSPECT
    assert await scene.turn() is State.EJECTED
    scene.ask.live_is = Outcome()
    assert await scene.turn() is State.WARMING  # by one pass, and a deep one
    deep_asked = scene.ask.deep_asked
    await scene.turn(step_s=5.0 * 1.2)
    assert scene.ask.deep_asked == deep_asked + 1


async def test_one_of_many_without_requests_is_asked_rarely_and_with_them_at_once(
    scene: Scene,
) -> None:
    assert scene.watch.is_due()  # in a small fleet always
    scene.watch.pace.idle_s = 100.0
    await scene.turn(step_s=2.0)
    scene.now_s += 49.0
    assert not scene.watch.is_due()
    lease = scene.lease()
    assert scene.watch.is_due()
    lease.end(scene.now_s)
    assert scene.watch.is_due()  # it may have been that which broke it
    await scene.turn()
    assert not scene.watch.is_due()
    scene.now_s += 100.0
    assert scene.watch.is_due()
    scene.ask.live_is = TIMEOUT
    await scene.turn()
    assert scene.watch.is_due()  # in doubt it is asked as ever


async def test_what_we_lack_ourselves_accuses_no_backend(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.ask.live_is = Outcome("EMFILE", own=True)
    assert await scene.turn(20, step_s=2.0) is State.READY
    assert caplog.text.count("backends cannot be asked") == 1
    scene.ask.live_is = Outcome()
    scene.ask.deep_is = Outcome("EMFILE", own=True)
    assert await scene.turn(20, step_s=2.0) is State.READY
    assert scene.ask.deep_asked > 1
    assert caplog.text.count("backends cannot be asked") == 2
    scene.ask.live_is = TIMEOUT  # and what it had counted before counts on
    assert await scene.turn(2) is State.SUSPECT
    scene.ask.live_is = Outcome("EMFILE", own=True)
    assert await scene.turn() is State.SUSPECT
    scene.ask.live_is = TIMEOUT
    assert await scene.turn() is State.EJECTED


# Maintenance --------------------------------------------------------------------------------------


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
