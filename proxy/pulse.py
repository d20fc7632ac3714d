"""Notices that the process itself did not run: silence that it slept through is nobody's fault.

Stopped by a signal, or in a machine that was suspended, the loop finds every deadline passed and
nothing read yet. A timer that comes often comes before nearly all of those deadlines, late by as
long as the loop did not run; whoever counts time then moves it on by that. Where the monotonic
clock stands still meanwhile, no time has passed for anybody.

A loop that worked all the while did not sleep: its own work moves no client's deadline, or whoever
makes it work would have them all moved.
"""

import asyncio
from collections.abc import Callable
from time import monotonic, thread_time
from typing import Final

from proxy.deadline import LATE_S

BEAT_S: Final = 0.25
# Of the time that a beat is late, so much on the CPU is work. One that sleeps has worked for less
# than a beat before it, which is a quarter of LATE_S.
WORKED: Final = 0.5


class Pulse:
    """Calls `slept` with the seconds that the loop did not run, as soon as it runs again.

    Where its own work kept it from running its timers, `worked` is called instead.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        slept: Callable[[float], None],
        worked: Callable[[float], None],
        now: Callable[[], float] = monotonic,
        cpu: Callable[[], float] = thread_time,
    ) -> None:
        """`cpu`: how long the calling thread has been on the CPU."""
        self._loop = loop
        self._slept = slept
        self._worked = worked
        self._now = now
        self._cpu = cpu
        self._due_s = 0.0
        self._began_cpu_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Beat from now on."""
        self._due_s = self._now() + BEAT_S
        self._began_cpu_s = self._cpu()
        self._timer = self._loop.call_later(BEAT_S, self._beat)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        late_s = self._now() - self._due_s
        worked_s = self._cpu() - self._began_cpu_s
        self.start()
        if late_s > LATE_S:
            (self._worked if worked_s >= WORKED * late_s else self._slept)(late_s)
