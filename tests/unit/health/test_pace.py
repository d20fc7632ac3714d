"""How often backends are probed, how many at once, and the rest between two turns."""

import asyncio

import pytest

from penstock.balancing.backend import Backend, State
from penstock.health.pace import COUNTED_S, HOLD_S, Pace, Places, Rest
from penstock.health.probes import Outcome
from tests.unit.health.watched import Scene
from tests.unit.proxy.timers import Timers


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


# -- places


class Probes:
    """Probes that end when they are told to; `began` is in the order in which they did."""

    def __init__(self, count: int) -> None:
        self.timers = Timers()
        self.places = Places(count, self.timers.call_later)
        self.began: list[int] = []
        self.ends = [asyncio.Event() for _ in range(20)]
        self.tasks: list[asyncio.Task[None]] = []

    async def begin(self, *numbers: int) -> None:
        self.tasks += [asyncio.create_task(self._probe(number)) for number in numbers]
        await self.turn()

    async def end(self, *numbers: int) -> None:
        for number in numbers:
            self.ends[number].set()
        await self.turn()

    async def turn(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def _probe(self, number: int) -> None:
        async with self.places.one():
            self.began.append(number)
            await self.ends[number].wait()


async def test_so_many_are_under_way_and_the_others_follow_in_order() -> None:
    probes = Probes(2)
    await probes.begin(0, 1, 2, 3, 4)
    assert probes.began == [0, 1]
    await probes.end(1)
    assert probes.began == [0, 1, 2]
    await probes.end(0, 2)
    assert probes.began == [0, 1, 2, 3, 4]
    await probes.end(3, 4)
    await probes.begin(5, 6, 7)
    assert probes.began[5:] == [5, 6]


async def test_those_that_hang_keep_nobody_waiting() -> None:
    probes = Probes(2)
    await probes.begin(*range(8))
    for held in (2, 4, 6):
        assert probes.began == list(range(held))
        probes.timers.to(probes.timers.now_s + HOLD_S)
        await probes.turn()
    assert probes.began == list(range(8))
    # A place that was given up is not given back again.
    await probes.end(*range(8))
    await probes.begin(10, 11, 12)
    assert probes.began[8:] == [10, 11]


async def test_whoever_stops_waiting_or_probing_leaves_its_place() -> None:
    probes = Probes(1)
    await probes.begin(0, 1, 2, 3)
    probes.tasks[1].cancel()  # it waits
    await probes.turn()
    await probes.end(0)
    assert probes.began == [0, 2]
    probes.tasks[2].cancel()  # it probes
    await probes.turn()
    assert probes.began == [0, 2, 3]


# -- rests


NEVER_S = 1_000.0


async def test_a_call_ends_the_rest() -> None:
    rest = Rest(lambda: NEVER_S, lambda: False)
    resting = asyncio.create_task(rest.over())
    await asyncio.sleep(0)
    assert not resting.done()
    rest.call()
    rest.call()
    assert await resting
    resting = asyncio.create_task(rest.over())
    await asyncio.sleep(0)
    assert not resting.done()  # both calls were for the turn that has been taken
    resting.cancel()


async def test_a_call_while_nobody_rests_ends_the_next_rest() -> None:
    rest = Rest(lambda: NEVER_S, lambda: False)
    rest.call()
    assert await rest.over()


async def test_it_ends_at_the_first_look_that_finds_a_turn_due() -> None:
    looks = [True, False, False]
    assert not await Rest(lambda: 0.0, looks.pop).over()
    assert not looks


async def test_a_cancelled_rest_looks_no_more() -> None:
    looks: list[int] = []

    def due() -> bool:
        looks.append(0)
        return False

    resting = asyncio.create_task(Rest(lambda: 0.0, due).over())
    for _ in range(5):
        await asyncio.sleep(0)
    resting.cancel()
    await asyncio.sleep(0)
    seen = len(looks)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(looks) == seen > 0
