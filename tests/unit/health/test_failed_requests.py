"""Failed requests: when they eject a backend, what ends a run of them, how often probes look."""

from itertools import groupby, pairwise

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import AdminState, State
from penstock.balancing.lease import Lease
from penstock.balancing.outliers.penalties import Cause
from penstock.conf.health import HealthSettings
from penstock.health.machine import PROBATION_FALL, REQUESTS_FALL
from penstock.health.probes import Outcome
from tests.unit.health.watched import FAILING, HUNG, REFUSED, TIMEOUT, Scene

# A row of failures that several clients met, or one alone, which only a probe can confirm.
ONE_OR_MANY = pytest.mark.parametrize("client", ["", "10.0.0.1"], ids=["many", "one"])


async def fail_in_a_row(scene: Scene, *, alone: bool, tokens: int = 0) -> None:
    """Enough to eject it: where one client met them, by a deep probe that fails too."""
    if alone:
        scene.ask.deep_is = FAILING
    scene.fail(REQUESTS_FALL, tokens)
    if alone:
        assert scene.backend.fit
        await scene.turn()


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


@pytest.mark.parametrize("left", [False, True])
async def test_peers_that_are_drained_or_left_cannot_stand_in(scene: Scene, left: bool) -> None:
    if left:
        scene.watch.reconfigure(scene.peers[:1], [], HealthSettings())
    else:
        for peer in scene.peers[1:]:
            peer.admin_state = AdminState.DRAIN
    scene.fail(REQUESTS_FALL)
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
    scene.fail()
    assert await scene.turn() is State.READY


async def test_an_answered_request_ends_a_run_of_failures(scene: Scene) -> None:
    for _ in range(3):
        scene.fail(REQUESTS_FALL - 1)
        scene.stream().complete(scene.now_s)
    assert scene.backend.state is State.READY


async def test_a_deep_pass_brings_back_no_row_that_a_whole_answer_ended(scene: Scene) -> None:
    """It was no client's doing, so that the pass itself clears nothing."""
    scene.lease().fail(scene.now_s, cause=Cause.NO_REQUEST)
    scene.watch.requests_failed(Cause.CLIENT)  # another's, which asks for the probe
    scene.stream().complete(scene.now_s)
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
    await fail_in_a_row(scene, alone=bool(client), tokens=3)
    assert scene.backend.state is State.EJECTED


async def test_answers_that_need_no_engine_prove_nothing_of_it(scene: Scene) -> None:
    scene.ask.deep_is = HUNG
    scene.lease()
    while await scene.turn(step_s=2.0) is not State.EJECTED:
        tokenized = Lease(scene.backend, Ask("/tokenize", engine=False), scene.now_s)
        tokenized.first_token(scene.now_s)
        tokenized.complete(scene.now_s)
        assert scene.ask.deep_asked < 5
        assert scene.now_s < 1_030.0


async def test_what_began_before_the_return_says_nothing_of_it(scene: Scene) -> None:
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


async def test_failing_requests_ask_for_a_deep_probe() -> None:
    """Penalties keep further requests away, so five in a row may take long to come."""
    scene = Scene(deep_interval_s=600.0)
    await scene.turn()
    for failures, asked in ((1, 0), (1, 1)):
        scene.fail(failures)
        await scene.turn(step_s=0.5)
        assert scene.ask.deep_asked == asked
    assert scene.backend.state is State.READY  # it passed


@pytest.mark.parametrize("works", [True, False])
async def test_where_no_probe_can_tell_one_client_ejects_nobody_who_works(works: bool) -> None:
    """The pool's key is missing, so probes are refused."""
    scene = Scene(client="10.0.0.1")
    await scene.turn()
    scene.ask.deep_is = Outcome("status_401", busy=True)
    stream = Lease(scene.backend, Ask("/v1/completions", client="victim"), scene.now_s)
    if works:
        stream.first_token(scene.now_s)
    scene.fail(2 * REQUESTS_FALL)
    for _ in range(4):  # they came all at once
        if works:
            stream.tokens(1)
        await scene.turn(step_s=0.5)
    assert (scene.backend.state is State.EJECTED) is not works


async def test_a_failed_probe_between_them_does_not_end_a_run_of_failures(scene: Scene) -> None:
    for number in range(REQUESTS_FALL):
        scene.fail()
        scene.ask.live_is = TIMEOUT if number % 2 else Outcome()
        await scene.turn()
    assert scene.backend.state is State.EJECTED


# Failures that deep probes do not confirm ---------------------------------------------------------


STEP_S = 0.1


async def fails(
    scene: Scene, seconds: float, cause: Cause = Cause.BACKEND
) -> tuple[list[State], list[float]]:
    """Two requests fail in each step, and a turn follows. Returns the states that it entered, and
    when deep probes were asked."""
    states, probed, began_s = [scene.backend.state], [], scene.now_s
    while scene.now_s < began_s + seconds:
        asked = scene.ask.deep_asked
        for _ in range(2):
            scene.lease().fail(scene.now_s, cause=cause)
            scene.watch.requests_failed(cause)
        states.append(scene.backend.state)
        states.append(await scene.turn(step_s=STEP_S))
        probed += [scene.now_s - began_s] * (scene.ask.deep_asked - asked)
    states = [state for state, _ in groupby(states)]
    return states, probed


@ONE_OR_MANY
@pytest.mark.parametrize("cause", [Cause.BACKEND, Cause.CLIENT])
async def test_probes_that_pass_are_asked_for_more_and_more_seldom(
    client: str, cause: Cause
) -> None:
    scene = Scene(1, client=client)  # its pool cannot spare it
    await scene.turn()
    states, probed = await fails(scene, 60.0, cause)
    assert probed[0] <= STEP_S + 1e-6
    pauses_s = [later - sooner for sooner, later in pairwise(probed)]
    assert pauses_s[:4] == pytest.approx([1.0, 2.0, 4.0, 8.0], abs=2.1 * STEP_S)
    assert max(pauses_s) <= 12.0 + STEP_S  # health.deep.interval_s, spread
    assert len(probed) <= 10
    assert len(states) <= 2 * len(probed) + 1


async def test_failures_of_several_clients_eject_at_once_also_after_a_pass() -> None:
    scene = Scene(client="10.0.0.1")
    await scene.turn()
    states, _ = await fails(scene, 5.0)
    assert states[-1] is State.READY
    for number in range(REQUESTS_FALL):
        scene.lease(client=f"10.0.1.{number}").fail(scene.now_s)
        scene.watch.requests_failed()
    assert scene.backend.state is State.EJECTED


async def test_what_is_certain_ejects_at_once_also_after_a_pass() -> None:
    scene = Scene(1, client="10.0.0.1")
    await scene.turn()
    await fails(scene, 5.0)
    scene.ask.live_is = REFUSED
    assert await scene.turn() is State.EJECTED


async def test_an_engine_that_breaks_after_a_pass_is_found_within_the_interval() -> None:
    scene = Scene(client="10.0.0.1")
    await scene.turn()
    await fails(scene, 20.0)
    assert scene.backend.state is State.READY
    scene.ask.deep_is = FAILING
    assert State.EJECTED in (await fails(scene, 12.0))[0]


async def test_a_suspicion_long_after_the_last_one_is_a_first_one() -> None:
    scene = Scene(1, client="10.0.0.1")
    await scene.turn()
    await fails(scene, 20.0)
    scene.now_s += 60.0
    await scene.turn()
    _, probed = await fails(scene, 2.5)
    assert probed == pytest.approx([STEP_S, 1.0 + 2 * STEP_S], abs=2.1 * STEP_S)


async def test_a_backend_that_was_away_is_not_trusted_for_what_was_before() -> None:
    scene = Scene(client="10.0.0.1")
    await scene.turn()
    await fails(scene, 5.0)
    scene.watch.certain("unreachable")
    assert await scene.turn(2, step_s=1.0) is State.WARMING
    scene.ask.deep_is = Outcome("failing")
    assert State.EJECTED in (await fails(scene, 2 * STEP_S))[0]
