"""Places for probes: so many at once, in order, and none is kept by a probe that hangs."""

import asyncio
from collections.abc import Callable

from penstock.health.pace import HOLD_S, Places


class Clock:
    """Timers of the test's: `pass_hold` is the time that a place may be held."""

    def __init__(self) -> None:
        self.timers: list[Entry] = []

    def later(self, delay_s: float, call: Callable[[], None]) -> "Entry":
        assert delay_s == HOLD_S
        self.timers.append(Entry(call))
        return self.timers[-1]

    def pass_hold(self) -> None:
        timers, self.timers = self.timers, []
        for timer in timers:
            if not timer.cancelled:
                timer.call()


class Entry:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Probes:
    """Probes that end when they are told to; `began` is in the order in which they did."""

    def __init__(self, count: int) -> None:
        self.clock = Clock()
        self.places = Places(count, self.clock.later)
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
        probes.clock.pass_hold()
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
