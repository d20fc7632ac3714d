"""A deadline that moves without touching the loop's timer."""

from math import inf
from typing import Any

import pytest

from penstock.proxy.wire.deadline import Deadline
from tests.unit.proxy.timers import Timers


def armed(loop: Timers) -> tuple[Deadline, list[float]]:
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
    loop = Timers()
    deadline, expired = armed(loop)
    for step, *at_s in steps:
        getattr(loop if step == "to" else deadline, step)(*at_s)
    loop.to(20.0)
    assert expired == expired_s
    assert deadline.at_s == inf


def test_moving_it_later_costs_no_timer() -> None:
    loop = Timers()
    deadline, expired = armed(loop)
    for second in range(1, 5):
        deadline.set(second + 5.0)
        assert len(loop.timers) == 1
    loop.to(8.9)
    assert expired == []
    loop.to(20.0)
    assert expired == [9.0]
