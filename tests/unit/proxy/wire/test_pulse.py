"""The process did not run for a while: deadlines move on, and nobody is blamed."""

from pathlib import Path

from penstock.balancing.backend import State
from penstock.health.probes import Outcome, Task
from penstock.health.stall import UNPROBED_STALL_S
from penstock.proxy.wire.deadline import LATE_S, READ_FIRST_S, Clock, Deadline
from penstock.proxy.wire.pulse import BEAT_S, Pulse, Runnable
from tests.unit.health.watched import HUNG, TIMEOUT, Scene
from tests.unit.proxy.timers import Timers
from tests.unit.proxy.wire.test_deadline import armed


class Sleeper(Timers):
    """A loop that can be stopped: all that fell due meanwhile fires when it goes on, in order."""

    cpu_s = 0.0
    waited_s = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock(self.time)

    def sleep(self, time_s: float) -> None:
        self.now_s += time_s
        for timer in sorted(self.timers, key=lambda timer: timer.at_s):
            if timer.at_s <= self.now_s and not timer.cancelled:
                self.timers.remove(timer)
                timer.call()

    def work(self, time_s: float) -> None:
        """One step of its own that takes so long."""
        self.cpu_s += time_s
        self.sleep(time_s)

    def wait(self, time_s: float, cpu_s: float) -> None:
        """One step that takes so long, though it had the CPU for less."""
        self.cpu_s += cpu_s
        self.waited_s += time_s - cpu_s
        self.sleep(time_s)

    def runnable(self) -> float:
        return self.cpu_s + self.waited_s


def beating(loop: Sleeper) -> list[float]:
    return told(loop)[0]


def told(loop: Sleeper) -> tuple[list[float], list[float]]:
    """How long it slept, each time, and how long it worked."""
    slept: list[float] = []
    worked: list[float] = []

    def sleeps(time_s: float) -> None:
        slept.append(time_s)
        loop.clock.slept(time_s)

    Pulse(loop, sleeps, worked.append, loop.time, loop.runnable).start()  # type: ignore[arg-type]
    return slept, worked


def test_a_loop_that_runs_has_not_slept() -> None:
    loop = Sleeper()
    slept = beating(loop)
    loop.to(10.0)
    loop.sleep(LATE_S)
    loop.to(20.0)
    assert slept == []


def test_it_tells_how_long_it_did_not_run() -> None:
    loop = Sleeper()
    slept = beating(loop)
    loop.to(10.0)
    loop.sleep(70.0)
    loop.to(100.0)
    loop.sleep(3.0)
    assert [round(each) for each in slept] == [70, 3]
    assert all(70.0 - BEAT_S <= each <= 70.0 for each in slept[:1])


def test_a_loop_that_works_for_long_has_not_slept() -> None:
    """Whoever makes the proxy work would have the deadlines of all moved."""
    loop = Sleeper()
    expired: list[float] = []
    deadline = Deadline(loop, lambda: expired.append(loop.now_s), loop.clock.now)  # type: ignore[arg-type]
    deadline.set(11.0)
    slept, worked = told(loop)
    loop.to(10.0)
    loop.work(4.0)
    assert deadline.at_s == 11.0
    loop.to(20.0)
    assert slept == []
    assert [round(each) for each in worked] == [4]
    assert 14.0 <= expired[0] <= 14.0 + READ_FIRST_S
    loop.cpu_s += 0.3  # busy in the beat before
    loop.sleep(3.0)
    assert [round(each) for each in slept] == [3]
    assert len(worked) == 1


def test_a_loop_that_waits_for_a_cpu_has_not_slept() -> None:
    """On a throttled machine its work takes many times longer, and is work all the same."""
    loop = Sleeper()
    slept, worked = told(loop)
    loop.to(10.0)
    loop.wait(10.0, cpu_s=1.0)
    loop.to(40.0)
    loop.wait(1.3, cpu_s=0.1)
    loop.to(60.0)
    loop.sleep(3.0)
    assert [round(each) for each in worked] == [10, 1]
    assert [round(each) for each in slept] == [3]


def test_what_the_kernel_tells_of_waiting_is_read(tmp_path: Path) -> None:
    told_at = tmp_path / "schedstat"
    assert Runnable(told_at).waited_s() == 0.0
    for text, time_s in (("7000000000 2500000000 12\n", 2.5), ("0 0 0\n", 0.0), ("\n", 0.0)):
        told_at.write_text(text)
        runnable = Runnable(told_at)
        assert runnable.waited_s() == time_s
        told_at.write_text("0 3500000000 1\n")
        assert runnable.waited_s() == 3.5
        runnable.close()
        assert runnable.waited_s() == 0.0


def test_deadlines_keep_the_time_that_they_had_left() -> None:
    """The last is due before the next beat, so that it fires before anybody has noticed."""
    loop = Sleeper()
    expired: list[tuple[float, float]] = []
    for at_s in (60.0, 69.9, 80.1, 10.05):
        deadline = Deadline(
            loop,  # type: ignore[arg-type]
            lambda at_s=at_s: expired.append((at_s, loop.now_s)),  # type: ignore[misc]
            loop.clock.now,
        )
        deadline.set(at_s)
    beating(loop)
    loop.to(10.0)
    loop.sleep(70.0)
    assert expired == []
    loop.to(300.0)
    for at_s, expired_s in expired:
        assert 70.0 - BEAT_S - 0.01 <= expired_s - at_s <= 70.0 + READ_FIRST_S, at_s
    assert len(expired) == 4


def test_a_late_deadline_that_is_called_off_or_moved_is_forgotten() -> None:
    loop = Sleeper()
    deadline, expired = armed(loop)
    deadline.set(5.0)
    loop.sleep(70.0)
    deadline.clear()
    loop.to(100.0)
    deadline.set(105.0)
    loop.sleep(70.0)
    deadline.set(300.0)
    loop.to(299.0)
    assert expired == []
    loop.to(301.0)
    assert expired == [300.0]


async def test_probes_that_it_slept_through_say_nothing() -> None:
    scene = Scene()
    await scene.turn()
    scene.ask.live_is, scene.ask.deep_is = TIMEOUT, HUNG
    scene.ask.during_live = scene.ask.during_deep = scene.watch.heard_nothing
    assert await scene.turn(10) is State.READY
    scene.ask.live_is, scene.ask.during_live = Outcome(), lambda: None
    scene.now_s += 700.0
    assert await scene.turn(3, step_s=30.0) is State.READY
    assert scene.ask.deep_asked


async def test_streams_that_it_could_not_hear_have_not_stalled() -> None:
    scene = Scene()
    scene.ask.task_is = Task.NONE
    await scene.turn()
    await scene.turn(6, step_s=2.0)
    scene.lease()
    await scene.turn()
    scene.now_s += 2 * UNPROBED_STALL_S
    scene.watch.heard_nothing()
    assert await scene.turn(2) is State.READY
