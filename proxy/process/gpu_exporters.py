"""The connections to the exporters of GPU metrics that a configuration names.

Their lookups and TLS handshakes have threads of their own: a broken exporter delays no backend.
"""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final

from penstock.balancing.backend import Backend
from penstock.health.gpus import Exporter, Gpus
from penstock.proxy.data.configuration import Configuration
from penstock.proxy.wire.handshakes import HandshakeThreads
from penstock.proxy.wire.host import Names
from penstock.proxy.wire.pool import ConnectionPool

# The time for an answer. An exporter of eight GPUs takes some ten milliseconds.
TIMEOUT_S: Final = 5.0


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
            exporters[backend] = Exporter(url, pool, TIMEOUT_S)
        self._gpus.use(exporters)
        for _, gone in before.values():
            gone.close()

    async def stop(self) -> None:
        await self._gpus.stop()
        for _, pool in self._pools.values():
            pool.close()
