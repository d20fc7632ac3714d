"""Notices that the process did not run. A silence in that time is nobody's fault.

After a stop signal, or when its machine was suspended, the loop finds all deadlines passed and
nothing read yet. A frequent timer fires before nearly all of those deadlines. It is late by the
time that the loop did not run, and the clock is set back by that time.

A loop that worked all the time did not sleep. Its own work moves no client's deadline, or a client
that causes work could move all deadlines. A loop that had work and waited for a CPU, as on a
throttled or shared machine, did not sleep either: a stopped process waits for no CPU.
"""

import asyncio
import os
from collections.abc import Callable
from math import inf
from pathlib import Path
from time import monotonic, thread_time
from typing import Final

from penstock.proxy.wire.deadline import LATE_S

BEAT_S: Final = 0.25
# If this share of a beat's delay was spent on the CPU or waiting for it, the loop was working. A
# sleeping loop has worked for less than a beat before, which is a quarter of LATE_S.
WORKED: Final = 0.5
# For this time after a sleep, failures are nobody's fault: peers that gave up waiting for the
# process are found in the first moments.
EXCUSED_S: Final = 5.0
# Of this thread: nanoseconds on the CPU, nanoseconds waiting for one, number of time slices.
_SCHEDULED: Final = Path("/proc/thread-self/schedstat")


class Runnable:
    """How long the loop's thread was on the CPU or waited for one. Made and asked in that thread.

    The file stays open: later there may be no descriptor for it.
    """

    def __init__(self, scheduled: Path = _SCHEDULED) -> None:
        try:
            self._file = os.open(scheduled, os.O_RDONLY)
        except OSError:  # the platform does not tell
            self._file = -1

    def seconds(self) -> float:
        return thread_time() + self.waited_s()

    def waited_s(self) -> float:
        """How long it has waited for a CPU. 0.0 where the platform does not tell."""
        if self._file < 0:
            return 0.0
        try:
            return int(os.pread(self._file, 256, 0).split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return 0.0

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Pulse:
    """Calls `slept` with the seconds that the loop did not run, as soon as it runs again.

    Calls `worked` instead if the loop's own work delayed its timers.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        slept: Callable[[float], None],
        worked: Callable[[float], None],
        now: Callable[[], float] = monotonic,
        runnable: Callable[[], float] | None = None,
    ) -> None:
        """`runnable`: how long the calling thread was on the CPU or waited for one, in seconds."""
        self._loop = loop
        self._slept = slept
        self._worked = worked
        self._now = now
        self._schedule = Runnable()
        self._runnable = runnable or self._schedule.seconds
        self._due_s = 0.0
        self._began_runnable_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Beat from now on."""
        self._go_on(self._now(), self._runnable())

    def stop(self) -> None:
        self._schedule.close()
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        now_s, ran_s = self._now(), self._runnable()
        late_s = now_s - self._due_s
        worked_s = ran_s - self._began_runnable_s
        self._go_on(now_s, ran_s)
        if late_s > LATE_S:
            (self._worked if worked_s >= WORKED * late_s else self._slept)(late_s)

    def _go_on(self, now_s: float, ran_s: float) -> None:
        self._due_s = now_s + BEAT_S
        self._began_runnable_s = ran_s
        self._timer = self._loop.call_later(BEAT_S, self._beat)


class Sleep:
    """When the process last woke up."""

    def __init__(self) -> None:
        self._woke_s = -inf

    def is_over(self, now_s: float) -> None:
        """The process runs again."""
        self._woke_s = now_s

    def excuses(self, began_s: float, now_s: float) -> bool:
        """Whether the sleep may be why something that began then has failed now."""
        return began_s < self._woke_s and now_s - self._woke_s < EXCUSED_S
