"""Measures how late the loop turns and what memory the process holds, four times a second.

The figures go to `overload`, which decides; here is only what touches the
kernel: the resident set, the memory limit of the control group, and giving
freed memory back, without which a full heap would look full for ever.
"""

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic, thread_time
from typing import Final

from proxy.plane import DataPlane

logger = logging.getLogger(__name__)

PERIOD_S: Final = 0.25
# While memory is short: time between two attempts to give some back. One takes milliseconds.
TRIM_S: Final = 5.0
# Counting walks through all tasks: 5 ms beside a thousand backends, which have two each.
COUNT_TASKS_S: Final = 5.0
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_STATM: Final = Path("/proc/self/statm")


class Pressure:
    """Watches one process for its plane."""

    def __init__(self, plane: DataPlane, group_limit_bytes: int) -> None:
        """`group_limit_bytes` is what the control group allows, 0 for no limit."""
        self._plane = plane
        self._group_limit_bytes = group_limit_bytes
        self._trimmed_s = 0.0
        self._counted_s = 0.0

    async def watch(self) -> None:
        """Measure until cancelled."""
        while True:
            due_s = monotonic() + PERIOD_S
            worked_s = thread_time()
            await asyncio.sleep(PERIOD_S)
            now_s = monotonic()
            self._look(now_s, max(0.0, now_s - due_s), thread_time() - worked_s)

    def _look(self, now_s: float, late_s: float, worked_s: float) -> None:
        plane = self._plane
        overload = plane.overload
        metrics = plane.metrics
        metrics.loop_lag_s.observe(late_s)
        metrics.clients = len(plane.clients)
        if now_s - self._counted_s >= COUNT_TASKS_S:
            self._counted_s = now_s
            metrics.tasks = len(asyncio.all_tasks())
        limit_bytes = plane.settings.limits.memory_bytes or self._group_limit_bytes
        held_bytes = resident_bytes() if limit_bytes else 0
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
        if overload.reason == "memory":
            plane.bodies.clear()
            plane.long_heads.clear()
        if overload.reason == "memory" and now_s - self._trimmed_s > TRIM_S:
            self._trimmed_s = now_s
            gc.collect()
            trim()


def resident_bytes() -> int:
    """What the process holds in memory; 0 where the system does not tell (not Linux)."""
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


def group_limit_bytes(
    root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> int:
    """The least `memory.max` of the process's control group (v2) and those above it; 0 for none."""
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
    """glibc's way to give freed memory back; other libraries do without."""
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return lambda: None
    return lambda: malloc_trim(0)


trim: Final = _trimmer()
