"""Reads what exporters tell of the backends' GPUs (NVIDIA's DCGM exporter).

Each backend with an exporter has a task of its own, apart from its probes: a slow or broken
exporter delays no probe and says nothing about the backend's health. Lookups and TLS handshakes
have threads of their own, too.
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
from penstock.health.probes import Answer, Connections
from penstock.health.scrape import TooLarge, samples_of
from penstock.proxy.data.configuration import Configuration
from penstock.proxy.wire.handshakes import HandshakeThreads
from penstock.proxy.wire.host import Names
from penstock.proxy.wire.pool import ConnectionPool

logger = logging.getLogger(__name__)

# The exporter itself looks at its GPUs every 30 s, or as often as it is configured to.
SCRAPE_S: Final = 10.0
SCRAPE_S_PER_BACKEND: Final = 0.02
# After so many missed scrapes the last report is too old.
MISSED: Final = 3.0
# An exporter tells some 3 kB of each GPU.
BYTES_MAX: Final = 1_048_576
MIB: Final = 1_048_576
# The time for an answer. An exporter of eight GPUs takes some ten milliseconds.
TIMEOUT_S: Final = 5.0
_UTILIZATION: Final = b"DCGM_FI_DEV_GPU_UTIL"
_USED: Final = b"DCGM_FI_DEV_FB_USED"
_FREE: Final = b"DCGM_FI_DEV_FB_FREE"


@dataclass(frozen=True, slots=True)
class Exporter:
    """Where to ask. When it changes, the task starts anew."""

    url: str
    connections: Connections


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

    def __init__(self, rng: Random, now: Callable[[], float] = monotonic) -> None:
        self._rng = rng
        self._now = now
        self._tasks: dict[Backend, tuple[Exporter, asyncio.Task[None]]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._scrape_s = SCRAPE_S

    def use(self, exporters: Mapping[Backend, Exporter]) -> None:
        """Ask these from now on. Reports of backends without an exporter are dropped."""
        self._scrape_s = max(SCRAPE_S, SCRAPE_S_PER_BACKEND * len(exporters))
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
                answer = await client.get(b"", TIMEOUT_S, BYTES_MAX)
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


class GpuExporters:
    """Follows the configurations in use. `stop` ends it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, rng: Random, now: Callable[[], float]
    ) -> None:
        self._loop = loop
        self._names = Names()
        self._threads = HandshakeThreads(loop)
        self._pools: dict[Backend, tuple[str, ConnectionPool]] = {}
        self._gpus = Gpus(rng, now)

    def use(self, configuration: Configuration) -> None:
        """Ask the exporters of this configuration from now on."""
        urls = {
            each.name: each.gpu_metrics_url
            for pool in configuration.settings.pools
            for each in pool.backends
        }
        before, self._pools = self._pools, {}
        exporters = {}
        for backend in configuration.fleet.backends:
            url = urls[backend.name]
            if url is None:
                continue
            known = before.get(backend)
            tls = configuration.certificates.pools.get(backend.pool)
            if known is not None and known[0] == url:
                pool = known[1]
                pool.trust(tls)
                del before[backend]
            else:
                pool = ConnectionPool(
                    self._loop,
                    url,
                    connect_timeout_s=TIMEOUT_S,
                    name=f"{backend.name} (GPU metrics)",
                    names=self._names,
                    threads=self._threads,
                    tls=tls,
                )
            self._pools[backend] = url, pool
            exporters[backend] = Exporter(url, pool)
        self._gpus.use(exporters)
        for _, gone in before.values():
            gone.close()

    async def stop(self) -> None:
        await self._gpus.stop()
        for _, pool in self._pools.values():
            pool.close()
