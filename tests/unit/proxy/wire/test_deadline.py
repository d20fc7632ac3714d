"""A deadline that moves without touching the loop's timer."""

from collections.abc import Callable
from math import inf
from typing import Any

import pytest

from penstock.proxy.wire.deadline import Deadline


class Timer:
    def __init__(self, at_s: float, callback: Callable[[], None]) -> None:
        self.at_s, self.callback, self.cancelled = at_s, callback, False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """Keeps timers and a clock; `to` moves it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Any:
        self.timers.append(Timer(self.now_s + delay_s, callback))
        return self.timers[-1]

    def to(self, now_s: float) -> None:
        while due := [t for t in self.timers if not t.cancelled and t.at_s <= now_s]:
            timer = min(due, key=lambda timer: timer.at_s)
            self.timers.remove(timer)
            self.now_s = timer.at_s
            timer.callback()
        self.now_s = now_s


def test_it_expires_once_at_its_time() -> None:
    loop, expired = Loop(), []
    deadline = Deadline(loop, lambda: expired.append(loop.now_s), loop.time)  # type: ignore[arg-type]
    deadline.set(5.0)
    loop.to(20.0)
    assert expired == [5.0]
    assert deadline.at_s == inf


def test_moving_it_later_costs_no_timer() -> None:
    loop, expired = Loop(), []
    deadline = Deadline(loop, lambda: expired.append(loop.now_s), loop.time)  # type: ignore[arg-type]
    for second in range(1, 5):
        deadline.set(second + 5.0)
        assert len(loop.timers) == 1
    loop.to(8.9)
    assert expired == []
    loop.to(20.0)
    assert expired == [9.0]


def test_moving_it_earlier_works() -> None:
    loop, expired = Loop(), []
    deadline = Deadline(loop, lambda: expired.append(loop.now_s), loop.time)  # type: ignore[arg-type]
    deadline.set(10.0)
    deadline.set(2.0)
    loop.to(20.0)
    assert expired == [2.0]


@pytest.mark.parametrize("end", ["clear", "close"])
def test_it_can_be_called_off(end: str) -> None:
    loop, expired = Loop(), []
    deadline = Deadline(loop, lambda: expired.append(loop.now_s), loop.time)  # type: ignore[arg-type]
    deadline.set(3.0)
    getattr(deadline, end)()
    loop.to(20.0)
    assert expired == []


def test_it_can_be_set_again_after_it_expired_or_was_cleared() -> None:
    loop, expired = Loop(), []
    deadline = Deadline(loop, lambda: expired.append(loop.now_s), loop.time)  # type: ignore[arg-type]
    for at_s in (1.0, 4.0):
        deadline.set(at_s)
        loop.to(at_s + 1.0)
    deadline.clear()
    deadline.set(9.0)
    loop.to(20.0)
    assert expired == [1.0, 4.0, 9.0]
