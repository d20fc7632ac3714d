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


def armed(loop: Loop) -> tuple[Deadline, list[float]]:
    """A deadline, and when it expired."""
    expired: list[float] = []
    on: Any = loop
    return Deadline(on, lambda: expired.append(loop.now_s), loop.time), expired


@pytest.mark.parametrize(
    ("steps", "expired_s"),
    [
        ([("set", 5.0), ("to", 20.0)], [5.0]),
        ([("set", 10.0), ("set", 2.0)], [2.0]),
        ([("set", 3.0), ("clear",)], []),
        ([("set", 3.0), ("close",)], []),
        ([("set", 1.0), ("to", 2.0), ("set", 4.0), ("to", 5.0)], [1.0, 4.0]),
        ([("set", 1.0), ("to", 2.0), ("clear",), ("set", 9.0)], [1.0, 9.0]),
    ],
)
def test_it_expires_once_at_the_time_set_last(steps: list[Any], expired_s: list[float]) -> None:
    loop = Loop()
    deadline, expired = armed(loop)
    for step, *at_s in steps:
        getattr(loop if step == "to" else deadline, step)(*at_s)
    loop.to(20.0)
    assert expired == expired_s
    assert deadline.at_s == inf


def test_moving_it_later_costs_no_timer() -> None:
    loop = Loop()
    deadline, expired = armed(loop)
    for second in range(1, 5):
        deadline.set(second + 5.0)
        assert len(loop.timers) == 1
    loop.to(8.9)
    assert expired == []
    loop.to(20.0)
    assert expired == [9.0]
