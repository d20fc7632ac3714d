"""The watch over a backend: what turns and requests do to its state."""

import pytest

from balancing.accusers import Cause
from balancing.ask import Ask
from balancing.backend import AdminState, State
from balancing.engine_report import EngineReport
from balancing.lease import Lease
from conf.settings import DeepProbeSettings, HealthSettings
from health.machine import PROBATION_FALL, REQUESTS_FALL
from health.probes import Outcome
from health.tasks import Task
from health.watch import STALL_S
from tests.unit.watched import FAILING, HUNG, REFUSED, TIMEOUT, Scene

# A row of failures that several clients met, or one alone, which only a probe can confirm.
ONE_OR_MANY = pytest.mark.parametrize("client", ["", "10.0.0.1"], ids=["many", "one"])


async def fail_in_a_row(scene: Scene, *, alone: bool) -> None:
    """Enough to eject it: where one client met them, by a deep probe that fails too."""
    if alone:
        scene.ask.deep_is = FAILING
    for _ in range(REQUESTS_FALL):
        scene.lease().fail(scene.now_s)
        scene.watch.requests_failed()
    if alone:
        assert scene.backend.fit
        await scene.turn()


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


async def test_a_stopped_server_is_out_after_fall_probes() -> None:
    scene = Scene()
    await scene.turn()
    scene.ask.live_is = TIMEOUT
    assert await scene.turn(2) is State.SUSPECT
    assert scene.backend.fit
    assert await scene.turn() is State.EJECTED
    assert not scene.backend.doubted


async def test_a_timeout_while_streams_progress_is_load() -> None:
    scene = Scene()
    await scene.turn()
    lease = scene.lease()
    lease.first_token(scene.now_s)
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


async def test_a_zombie_is_found_by_deep_probes() -> None:
    scene = Scene()
    await scene.turn()
    scene.ask.deep_is = HUNG
    turns = 0
    while await scene.turn(step_s=2.0) is not State.EJECTED:
        turns += 1
        assert turns < 10
    assert scene.backend.reason == "hung"
    assert scene.backend.doubted
    assert scene.ask.deep_asked == 2


async def test_requests_without_progress_bring_the_deep_probe_forward() -> None:
    scene = Scene()
    await scene.turn()
    lease = scene.lease()
    lease.first_token(scene.now_s)
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


async def test_a_deep_probe_waits_for_what_is_left_of_the_prompt_at_work() -> None:
    scene = Scene()
    await scene.turn()
    scene.now_s += 10.0
    await scene.turn()
    scene.ask.deep_asked = 0
    scene.lease(tokens=100_000)
    await scene.turn(step_s=2.0)
    await scene.turn(step_s=10.0)
    assert scene.ask.deep_asked == 1
    assert 0.0 <= scene.ask.deep_timeout_s - 4.0 <= 8.0


async def test_prompts_that_pile_up_at_a_zombie_buy_it_no_time() -> None:
    scene = Scene()
    await scene.turn()
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


async def test_progress_during_a_deep_probe_forgives_it() -> None:
    scene = Scene()
    await scene.turn()
    lease = scene.lease()
    lease.first_token(scene.now_s)
    await scene.turn()
    scene.ask.deep_is = HUNG
    scene.ask.during_deep = lambda: lease.tokens(1)
    assert await scene.turn(5, step_s=20.0) is State.READY
    assert scene.ask.deep_asked >= 4


async def test_streams_that_progress_spare_the_deep_probe() -> None:
    scene = Scene()
    await scene.turn()
    lease = scene.lease()
    for _ in range(50):
        lease.tokens(1)
        await scene.turn(step_s=2.0)
    assert scene.ask.deep_asked == 0
    lease.end(scene.now_s)
    await scene.turn(10, step_s=2.0)
    assert scene.ask.deep_asked >= 1


async def test_a_busy_answer_to_a_deep_probe_says_nothing() -> None:
    scene = Scene()
    await scene.turn()
    scene.ask.deep_is = Outcome("status_503", busy=True)
    assert await scene.turn(20, step_s=10.0) is State.READY


async def test_a_draining_server_is_out_at_once_and_not_back_by_its_health() -> None:
    scene = Scene()
    await scene.turn()
    scene.watch.certain("draining")
    scene.ask.deep_is = Outcome("draining", certain=True)
    assert await scene.turn(30, step_s=2.0) is State.EJECTED
    assert scene.backend.reason == "draining"
    scene.ask.deep_is = Outcome()
    assert await scene.turn(2) is State.WARMING


async def test_an_engine_that_sleeps_is_not_asked_for_work() -> None:
    scene = Scene()
    await scene.turn()
    scene.backend.report = EngineReport(at_s=scene.now_s, awake=False)
    scene.watch.certain("asleep")
    assert await scene.turn(4) is State.EJECTED
    assert scene.backend.reason == "asleep"
    assert scene.ask.deep_asked == 0
    scene.backend.report = EngineReport(at_s=scene.now_s, awake=True)
    assert await scene.turn() is State.WARMING


async def test_back_through_a_deep_pass_then_slow_start() -> None:
    scene = Scene()
    await scene.turn()
    scene.watch.certain("unreachable")
    assert await scene.turn() is State.EJECTED
    assert await scene.turn() is State.WARMING
    assert scene.ask.deep_asked == 1
    assert scene.backend.slow_start is not None
    assert await scene.turn(step_s=29.0) is State.WARMING
    assert await scene.turn(step_s=1.0) is State.READY
    assert scene.backend.slow_start is None


@ONE_OR_MANY
async def test_suspicion_never_takes_the_last_nor_more_than_half(client: str) -> None:
    for count, others_out, state in (
        (1, 0, State.SUSPECT),
        (2, 0, State.EJECTED),
        (2, 1, State.SUSPECT),
        (4, 1, State.EJECTED),
        (4, 2, State.SUSPECT),
        (5, 2, State.SUSPECT),
    ):
        scene = Scene(count, client=client)
        await scene.turn()
        for peer in scene.peers[1 : 1 + others_out]:
            peer.state = State.EJECTED
        await fail_in_a_row(scene, alone=bool(client))
        assert scene.backend.state is state, (count, others_out)


async def test_peers_that_are_drained_cannot_stand_in() -> None:
    scene = Scene()
    await scene.turn()
    for peer in scene.peers[1:]:
        peer.admin_state = AdminState.DRAIN
    for _ in range(REQUESTS_FALL):
        scene.lease().fail(scene.now_s)
        scene.watch.requests_failed()
    assert scene.backend.state is State.SUSPECT


@ONE_OR_MANY
async def test_a_run_of_failures_ends_with_the_ejection_that_it_led_to(client: str) -> None:
    scene = Scene(client=client)
    await scene.turn()
    await fail_in_a_row(scene, alone=bool(client))
    assert scene.backend.state is State.EJECTED
    scene.ask.deep_is = Outcome()
    assert await scene.turn(2, step_s=20.0) is State.WARMING
    assert await scene.turn(step_s=40.0) is State.READY
    scene.lease().fail(scene.now_s)
    scene.watch.requests_failed()
    assert await scene.turn() is State.READY


async def test_an_answered_request_ends_a_run_of_failures() -> None:
    scene = Scene()
    await scene.turn()
    for _ in range(3):
        for _ in range(REQUESTS_FALL - 1):
            scene.lease().fail(scene.now_s)
            scene.watch.requests_failed()
        good = scene.lease()
        good.first_token(scene.now_s)
        good.complete(scene.now_s)
    assert scene.backend.state is State.READY


async def test_a_deep_pass_brings_back_no_row_that_a_whole_answer_ended() -> None:
    """It was no client's doing, so that the pass itself clears nothing."""
    scene = Scene()
    await scene.turn()
    scene.lease().fail(scene.now_s, cause=Cause.NO_REQUEST)
    scene.watch.requests_failed(Cause.CLIENT)  # another's, which asks for the probe
    good = scene.lease()
    good.first_token(scene.now_s)
    good.complete(scene.now_s)
    asked = scene.ask.deep_asked
    await scene.turn()
    assert scene.ask.deep_asked > asked
    assert scene.backend.failures_in_row == 0


@ONE_OR_MANY
async def test_streams_that_all_break_after_their_first_token_are_a_run_of_failures(
    client: str,
) -> None:
    scene = Scene(client=client)
    await scene.turn()
    if client:
        scene.ask.deep_is = FAILING
    for _ in range(REQUESTS_FALL):
        lease = scene.lease()
        lease.first_token(scene.now_s)
        lease.tokens(3)
        assert lease.fail(scene.now_s)
        scene.watch.requests_failed()
    if client:
        assert scene.backend.fit
        await scene.turn()
    assert scene.backend.state is State.EJECTED


async def test_answers_that_need_no_engine_prove_nothing_of_it() -> None:
    scene = Scene()
    await scene.turn()
    scene.ask.deep_is = HUNG
    scene.lease()
    while await scene.turn(step_s=2.0) is not State.EJECTED:
        tokenized = Lease(scene.backend, Ask("/tokenize", engine=False), scene.now_s)
        tokenized.first_token(scene.now_s)
        tokenized.complete(scene.now_s)
        assert scene.ask.deep_asked < 5
        assert scene.now_s < 1_030.0


async def test_what_began_before_the_return_says_nothing_of_it() -> None:
    scene = Scene()
    await scene.turn()
    old = [scene.lease() for _ in range(REQUESTS_FALL)]
    scene.now_s += 1.0
    scene.watch.certain("unreachable")
    assert await scene.turn(2, step_s=1.0) is State.WARMING
    assert not any(lease.fail(scene.now_s) for lease in old)
    assert scene.backend.failures_in_row == 0
    for _ in range(PROBATION_FALL):
        assert scene.lease().fail(scene.now_s)
        scene.watch.requests_failed()
    assert scene.backend.state is State.EJECTED


async def test_a_busy_answer_lets_it_back() -> None:
    """A key that we do not have, a queue that others fill: it works, and slow start bounds it."""
    scene = Scene()
    await scene.turn()
    scene.watch.certain("unreachable")
    scene.ask.deep_is = Outcome("status_401", busy=True)
    assert await scene.turn(2) is State.WARMING


async def test_a_busy_backend_is_asked_no_sooner() -> None:
    scene = Scene()
    await scene.turn()
    scene.ask.deep_is = Outcome("status_503", busy=True)
    await scene.turn(20, step_s=2.0)
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


async def test_another_kind_of_server_may_come_back() -> None:
    scene = Scene()
    await scene.turn()
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
        lines = [f"backend cannot start to serve name=b0 reason={reason}"]  # once
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


async def test_a_backend_in_maintenance_is_left_alone() -> None:
    scene = Scene()
    await scene.turn()
    scene.backend.admin_state = AdminState.MAINT
    scene.ask.live_is = REFUSED
    assert await scene.turn(5, step_s=2.0) is State.READY
    assert not scene.backend.fit


async def test_after_maintenance_it_is_unknown() -> None:
    """It may be another server: one pass lets it in, as at the start."""
    scene = Scene()
    await scene.turn()
    scene.backend.admin_state = AdminState.MAINT
    await scene.turn()
    scene.backend.admin_state = AdminState.READY
    scene.watch.resume()
    assert (scene.backend.state, scene.backend.reason) == (State.STARTING, "loading")
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
        scene.lease(client=client).refused(scene.now_s, scene.peers[1:])
    scene.watch.certain("unreachable")
    scene.watch.resume()
    scene.ask.task_is = Task.COMPLETION
    assert await scene.turn() is State.READY
    assert backend.penalty.read(scene.now_s) == 0.0
    for _ in range(REQUESTS_FALL):
        scene.lease(client="a").fail(scene.now_s)
        scene.watch.requests_failed()
    assert backend.fit  # one client's word, and no probe's yet
    assert not scene.lease(client="c").refused(scene.now_s, scene.peers[1:])


async def test_maintenance_pardons_ejections() -> None:
    scene = Scene()
    await scene.turn()
    for _ in range(3):
        scene.watch.certain("unreachable")
    assert scene.backend.state is State.EJECTED
    scene.watch.resume()
    assert await scene.turn() is State.READY


async def test_failing_requests_ask_for_a_deep_probe() -> None:
    """Penalties keep further requests away, so five in a row may take long to come."""
    scene = Scene(deep_interval_s=600.0)
    await scene.turn()
    for failures, asked in ((1, 0), (1, 1)):
        for _ in range(failures):
            scene.lease().fail(scene.now_s)
        scene.watch.requests_failed()
        await scene.turn(step_s=0.5)
        assert scene.ask.deep_asked == asked
    assert scene.backend.state is State.READY  # it passed


async def test_what_returns_is_forgiven() -> None:
    scene = Scene()
    await scene.turn()
    for _ in range(REQUESTS_FALL):
        scene.lease().fail(scene.now_s)
    scene.watch.requests_failed()
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


async def test_peers_that_left_the_pool_cannot_stand_in() -> None:
    scene = Scene()
    await scene.turn()
    scene.watch.reconfigure(scene.peers[:1], [], HealthSettings())
    for _ in range(REQUESTS_FALL):
        scene.lease().fail(scene.now_s)
        scene.watch.requests_failed()
    assert scene.backend.state is State.SUSPECT


async def test_a_failed_probe_between_them_does_not_end_a_run_of_failures() -> None:
    scene = Scene()
    await scene.turn()
    for number in range(REQUESTS_FALL):
        scene.lease().fail(scene.now_s)
        scene.watch.requests_failed()
        scene.ask.live_is = TIMEOUT if number % 2 else Outcome()
        await scene.turn()
    assert scene.backend.state is State.EJECTED


async def test_one_of_many_without_requests_is_asked_rarely_and_with_them_at_once() -> None:
    scene = Scene()
    await scene.turn()
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
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene()
    await scene.turn()
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
