"""Reads what exporters tell of the backends' GPUs (NVIDIA's DCGM exporter).

Each backend with an exporter has a task of its own, apart from its probes: a slow or broken
exporter delays no probe and says nothing about the backend's health.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from time import monotonic
from typing import Final

from penstock.balancing.backend import Backend
from penstock.balancing.engine_report import GpuReport
from penstock.health.client import Answer, Connections
from penstock.health.scrape import TooLarge, samples_of

logger = logging.getLogger(__name__)

# The exporter itself looks at its GPUs every 30 s, or as often as it is configured to.
SCRAPE_S: Final = 10.0
SCRAPE_S_PER_BACKEND: Final = 0.02
# After so many missed scrapes the last report is too old.
MISSED: Final = 3.0
# An exporter tells some 3 kB of each GPU.
BYTES_MAX: Final = 1_048_576
MIB: Final = 1_048_576
_UTILIZATION: Final = b"DCGM_FI_DEV_GPU_UTIL"
_USED: Final = b"DCGM_FI_DEV_FB_USED"
_FREE: Final = b"DCGM_FI_DEV_FB_FREE"


@dataclass(frozen=True, slots=True)
class Exporter:
    """Where to ask. When it changes, the task starts anew."""

    url: str
    connections: Connections
    timeout_s: float


def rest_s(exporters: int) -> float:
    """The time between two scrapes of one exporter."""
    return max(SCRAPE_S, SCRAPE_S_PER_BACKEND * exporters)


def read_gpus(text: bytes, until_s: float) -> GpuReport | None:
    """What an exposition tells of GPUs. None: nothing. Raises TooLarge."""
    text = b"\n" + text
    shares, used, free = [
        [value for _, value in samples_of(text, name)] for name in (_UTILIZATION, _USED, _FREE)
    ]
    if not (shares or used or free):
        return None
    return GpuReport(
        until_s,
        min(1.0, sum(shares) / len(shares) / 100.0) if shares else None,
        int(sum(used)) * MIB if used else None,
        int(sum(free)) * MIB if free else None,
    )


class Gpus:
    """The tasks of all exporters. `stop` ends them."""

    def __init__(
        self,
        rng: Random,
        now: Callable[[], float] = monotonic,
        rest_s: Callable[[int], float] = rest_s,
    ) -> None:
        """`rest_s`: the time between two scrapes of one, where there are so many exporters."""
        self._rng = rng
        self._now = now
        self._rest_s = rest_s
        self._tasks: dict[Backend, tuple[Exporter, asyncio.Task[None]]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._scrape_s = SCRAPE_S

    def use(self, exporters: Mapping[Backend, Exporter]) -> None:
        """Ask these from now on. Reports of backends without an exporter are dropped."""
        self._scrape_s = self._rest_s(len(exporters))
        for backend, (exporter, task) in list(self._tasks.items()):
            if exporters.get(backend) != exporter:
                del self._tasks[backend]
                backend.gpus = None
                self._end(task)
        for backend, exporter in exporters.items():
            if backend not in self._tasks:
                task = asyncio.create_task(self._read(backend, exporter))
                self._tasks[backend] = exporter, task

    async def stop(self) -> None:
        self.use({})
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        task.cancel()

    async def _read(self, backend: Backend, exporter: Exporter) -> None:
        client = exporter.connections.questions()
        is_told = False
        await asyncio.sleep(self._rng.random())  # not all at once
        while True:
            reason = ""
            try:
                answer = await client.get(b"", exporter.timeout_s, BYTES_MAX)
                reason = answer.reason or self._take(backend, answer)
            except Exception:
                reason = "failing"
                logger.exception("GPU metrics failed name=%s", backend.name)
            finally:
                client.hang_up()
            news, is_told = bool(reason) and not is_told, bool(reason)
            if news:
                logger.warning("GPU metrics cannot be read name=%s reason=%s", backend.name, reason)
            await asyncio.sleep(self._scrape_s * (0.9 + 0.2 * self._rng.random()))

    def _take(self, backend: Backend, answer: Answer) -> str:
        """Take its report. Returns why that cannot be done, or nothing."""
        if answer.status != 200:
            return f"status_{answer.status}"
        if not answer.whole:
            return "too_large"
        try:
            report = read_gpus(answer.body, self._now() + MISSED * self._scrape_s)
        except TooLarge:
            return "too_large"
        if report is None:
            return "no_gpus"
        backend.gpus = report
        return ""
