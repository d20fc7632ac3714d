"""The clock of admission in virtual time, as `proxy/data/wakes.py` is in the proxy."""

from collections.abc import Callable

from penstock.balancing.admission.controller import TICK_S, Admission
from penstock.balancing.admission.dispatch import Told


class Wakes:
    """Wakes several admissions. `at` and `now` are those of the experiment."""

    def __init__(
        self, at: Callable[[float, Callable[[float], None]], None], now: Callable[[], float]
    ) -> None:
        self._at = at
        self._now = now
        self._soon = False
        self._ticking = False
        self.admissions: list[Admission] = []

    def soon(self) -> None:
        """Room may have come free, or something has begun to wait."""
        if not self._soon:
            self._soon = True
            self._at(self._now(), self._wake)

    def _wake(self, now_s: float) -> None:
        self._soon = False
        for admission in self.admissions:
            outcomes: list[Told] = []
            admission.wake(now_s, outcomes)
            for ticket, outcome in outcomes:
                ticket.ready(outcome)
        if not self._ticking and any(each.waiting for each in self.admissions):
            self._ticking = True
            self._at(now_s + TICK_S, self._tick)

    def _tick(self, now_s: float) -> None:
        self._ticking = False
        self._wake(now_s)
