"""The pace of a fleet: what all of those without requests may cost, whatever their number."""

import pytest

from penstock.balancing.backend import Backend, State
from penstock.health.pace import COUNTED_S, Pace
from penstock.health.probes import Outcome
from tests.unit.health.watched import Scene


def fleet(count: int, state: State) -> list[Backend]:
    backends = [Backend(f"b{i}", f"http://b{i}") for i in range(count)]
    for backend in backends:
        backend.state = state
    return backends


@pytest.mark.parametrize("count", [100, 1_000, 5_000])
def test_the_idle_and_the_lost_of_a_fleet_cost_the_same_whatever_their_number(count: int) -> None:
    pace = Pace(fleet(count, State.STARTING))
    assert count / (0.75 * pace.idle_s) == pytest.approx(13.3, abs=0.1)  # turns a second
    assert count / pace.out_s(0.0) == pytest.approx(200.0)
    assert count / pace.first_s == pytest.approx(500.0)


def test_a_few_that_are_out_are_asked_as_ever() -> None:
    backends = fleet(1_000, State.READY)
    for backend in backends[:20]:
        backend.state = State.EJECTED
    assert Pace(backends).out_s(0.0) == pytest.approx(0.1)
    assert Pace(backends[20:]).out_s(0.0) == 0.0
    assert Pace().idle_s == 0.0


def test_those_that_are_out_are_counted_now_and_then() -> None:
    backends = fleet(100, State.STARTING)
    pace = Pace(backends)
    assert pace.out_s(10.0) == pytest.approx(0.5)
    for backend in backends:
        backend.state = State.READY
    assert pace.out_s(10.0 + 0.9 * COUNTED_S) == pytest.approx(0.5)
    assert pace.out_s(10.0 + COUNTED_S) == 0.0


async def test_one_of_many_that_start_is_asked_in_turn_and_one_with_requests_at_once() -> None:
    scene = Scene()
    scene.watch.pace = Pace([*fleet(999, State.STARTING), scene.backend])
    scene.ask.live_is = Outcome("status_503")
    await scene.turn()
    scene.now_s += 4.9
    assert not scene.watch.is_due()
    lease = scene.lease()
    assert scene.watch.is_due()
    await scene.turn()
    assert scene.watch.is_due()  # it still has the request
    lease.end(scene.now_s)
    await scene.turn()
    assert not scene.watch.is_due()
    scene.now_s += 5.1
    assert scene.watch.is_due()
