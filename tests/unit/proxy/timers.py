"""Timers and a clock that a test moves."""

from collections.abc import Callable


class Timer:
    def __init__(self, at_s: float, call: Callable[[], None]) -> None:
        self.at_s, self.call, self.cancelled = at_s, call, False

    def cancel(self) -> None:
        self.cancelled = True


class Timers:
    """The part of a loop that keeps timers; `to` moves its clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.now_s + delay_s, call))
        return self.timers[-1]

    def to(self, now_s: float) -> None:
        while due := [t for t in self.timers if not t.cancelled and t.at_s <= now_s]:
            timer = min(due, key=lambda timer: timer.at_s)
            self.timers.remove(timer)
            self.now_s = timer.at_s
            timer.call()
        self.now_s = now_s
