"""Failures that deep probes do not confirm: how often they are looked at again, and what is not
held up by that."""

from itertools import groupby, pairwise

import pytest

from penstock.balancing.backend import State
from penstock.balancing.outliers.penalties import Cause
from penstock.health.machine import REQUESTS_FALL
from penstock.health.probes import Outcome
from tests.unit.health.watched import FAILING, REFUSED, Scene

ONE_OR_MANY = pytest.mark.parametrize("client", ["", "10.0.0.1"], ids=["many", "one"])
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
