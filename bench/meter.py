"""What a process has used: CPU by the scheduler's own accounting, and peak memory.

Linux has a clock per process that counts what its threads, also the ended ones,
ran, in nanoseconds: the sum of the first fields of /proc/PID/task/*/schedstat,
in one call and without the hole that an ended thread leaves there. The ticks of
/proc/PID/stat would be 10 ms coarse.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SCHEDULER_CLOCK: Final = 2  # CPUCLOCK_SCHED; the kernel's encoding of clock_getcpuclockid(3)
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def cpu_clock(pid: int) -> int:
    return (~pid << 3) | _SCHEDULER_CLOCK


def cpu_ns(pid: int) -> int:
    """Nanoseconds of CPU that the process has used."""
    return time.clock_gettime_ns(cpu_clock(pid))


def peak_memory_bytes(status: str) -> int:
    """VmHWM in the text of /proc/PID/status."""
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no VmHWM")


def peak_memory_of(pid: int) -> int:
    return peak_memory_bytes(Path(f"/proc/{pid}/status").read_text())


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def machine_ticks(stat: str) -> tuple[int, int]:
    """(idle, all) ticks of all cores in the text of /proc/stat."""
    fields = [int(field) for field in stat.split("\n", 1)[0].split()[1:9]]
    return fields[3] + fields[4], sum(fields)


@dataclass(frozen=True, slots=True)
class Reading:
    """What was used up to a moment."""

    at_s: float
    cpu_ns: dict[str, int]
    idle_ticks: int
    ticks: int

    def since(self, earlier: "Reading") -> "Used":
        spent = {name: at - earlier.cpu_ns[name] for name, at in self.cpu_ns.items()}
        ticks = max(1, self.ticks - earlier.ticks)
        idle = self.idle_ticks - earlier.idle_ticks
        return Used(self.at_s - earlier.at_s, spent, 1 - idle / ticks)


@dataclass(frozen=True, slots=True)
class Used:
    """What was used between two moments. `busy_share` is of all cores, by anyone."""

    window_s: float
    cpu_ns: dict[str, int]
    busy_share: float


def read(pids: Mapping[str, int]) -> Reading:
    """Read the clocks of processes, by name."""
    idle, ticks = machine_ticks(Path("/proc/stat").read_text())
    spent = {name: cpu_ns(pid) for name, pid in pids.items()}
    return Reading(time.monotonic(), spent, idle, ticks)
