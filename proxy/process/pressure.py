"""Measures the lag of the event loop and the memory in use, four times a second.

`overload` decides by these figures. While memory is short, clients without an accepted request
are closed first, then idle connections and unfinished heads of others. Once requests are refused,
half bodies, waiting reads and unread answers are given up too. If that does not help, sessions and
stored responses are forgotten. So nobody can have all requests refused for ever. Freed memory is
given back to the kernel, or a heap that was full once would look full for ever.
"""

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
from collections.abc import Callable
from pathlib import Path
from time import thread_time
from typing import Any, Final

from penstock.balancing.fair_table import KeyTable
from penstock.proxy.data.plane import DataPlane

logger = logging.getLogger(__name__)

PERIOD_S: Final = 0.25
# Time between two attempts to give memory back while memory is short. One takes milliseconds.
TRIM_S: Final = 0.5
# The same for a run of the garbage collector, which may take a hundred times as long.
COLLECT_S: Final = 5.0
# Counting walks through all tasks: 5 ms with a thousand backends, which have two tasks each.
COUNT_TASKS_S: Final = 5.0
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_STATM: Final = "/proc/self/statm"


class Pressure:
    """Watches one process for its data plane."""

    def __init__(self, plane: DataPlane, resident: Callable[[], int] | None = None) -> None:
        self._plane = plane
        self._resident = resident or resident_bytes
        self._trimmed_s = self._collected_s = 0.0
        self._counted_s = 0.0
        self._to_halve: list[KeyTable[Any]] = []

    async def watch(self) -> None:
        """Measure until cancelled."""
        while True:
            due_s = self._plane.now() + PERIOD_S
            worked_s = thread_time()
            await asyncio.sleep(PERIOD_S)
            now_s = self._plane.now()
            worked_s = thread_time() - worked_s
            await self.make_room()
            self.observe(now_s, max(0.0, now_s - due_s), worked_s)

    async def make_room(self) -> None:
        """Memory is short: take what clients only keep before requests are refused."""
        plane = self._plane
        over_bytes = self._over_bytes()
        if over_bytes and plane.now() - self._trimmed_s > TRIM_S:
            self._trimmed_s = plane.now()
            trim()
            over_bytes = self._over_bytes()
        refusing = plane.overload.reason == "memory"
        if over_bytes and await plane.clients.make_room(over_bytes, refusing=refusing):
            await asyncio.sleep(0)
            trim()

    def _over_bytes(self) -> int:
        limit_bytes = self._plane.memory.limit_bytes
        held_bytes = self._resident() if limit_bytes else 0
        return self._plane.overload.over_bytes(held_bytes, limit_bytes)

    def observe(self, now_s: float, late_s: float, worked_s: float) -> None:
        """Decide whether the process is overloaded, after a turn `late_s` late."""
        plane = self._plane
        overload = plane.overload
        metrics = plane.metrics
        metrics.loop_lag_s.observe(late_s)
        metrics.clients = len(plane.clients)
        plane.measure(now_s)
        if now_s - self._counted_s >= COUNT_TASKS_S:
            self._counted_s = now_s
            metrics.tasks = len(asyncio.all_tasks())
        limit_bytes = plane.memory.limit_bytes
        held_bytes = self._resident() if limit_bytes else 0
        lasted_s = overload.lasted_s(now_s)
        if overload.observe(now_s, PERIOD_S, late_s, worked_s, held_bytes, limit_bytes):
            if overload.reason:
                logger.warning(
                    "overloaded, refusing new requests reason=%s lag_ms=%.0f resident_bytes=%d "
                    "memory_limit_bytes=%d clients=%d",
                    overload.reason,
                    overload.lag_s * 1000,
                    held_bytes,
                    limit_bytes,
                    len(plane.clients),
                )
            else:
                logger.info("overload is over lasted_s=%.1f", lasted_s)
        metrics.overload = overload.reason
        if overload.reason:
            plane.mirrors.end_all()
        if overload.reason == "memory":
            plane.ledger.free(overload.over_bytes(held_bytes, limit_bytes))
        if overload.reason == "memory" and now_s - self._collected_s > COLLECT_S:
            self._collected_s = now_s
            if overload.short_s(now_s) > COLLECT_S:  # nothing else has helped
                self._to_halve = list(plane.tables)
            collect()
        elif self._to_halve:  # one in each period: it takes tens of milliseconds
            self._to_halve.pop().halve()
            if not self._to_halve:
                collect()


def collect() -> None:
    """Free what only the garbage collector finds, and give it back."""
    gc.collect()
    trim()


def resident_bytes() -> int:
    """The resident memory of the process. 0 where the system does not tell (not Linux)."""
    try:
        statm = os.open(_STATM, os.O_RDONLY)  # a file object costs nearly twice as much
    except OSError:
        return 0
    try:
        return int(os.read(statm, 256).split()[1]) * _PAGE_BYTES
    finally:
        os.close(statm)


def group_limit_bytes(
    root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> int:
    """The least `memory.max` of the process's control group (v2) and its parents; 0 for none."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return 0
    path = next((line[3:] for line in lines if line.startswith("0::")), "/").strip("/")
    group = root / path
    limits = []
    for folder in (group, *group.parents):
        with contextlib.suppress(OSError, ValueError):  # not there, or "max"
            limits.append(int((folder / "memory.max").read_text()))
        if folder == root:
            break
    return min(limits, default=0)


def _trimmer() -> Callable[[], object]:
    """glibc's function to give freed memory back. Nothing with other libraries."""
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return lambda: None
    return lambda: malloc_trim(0)


trim: Final = _trimmer()


TRIM_BYTES: Final = 16 * 2**20
MMAP_BYTES: Final = 4 * 2**20
# The numbers of the parameters in glibc's malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def keep_pages() -> bool:
    """Keep memory of a long prompt for the next one. False where the C library cannot (musl).

    By default a body of a megabyte is taken from the kernel and given back, page by page, for every
    request: 40 % of its cost (3.6 ms of CPU before, 2.1 after: `penstock bench overhead`, prompts
    of 1 MB). At most TRIM_BYTES beyond the memory in use are kept. Blocks larger than MMAP_BYTES
    still go back at once.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, TRIM_BYTES) and mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES))
