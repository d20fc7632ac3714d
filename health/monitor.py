"""The watches and scrapes of the whole fleet: their tasks, and what the rest of the program tells.

Two tasks a backend: one takes the turns of its watch, one reads its metrics.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from time import monotonic
from types import MappingProxyType
from typing import Final

import aiohttp

from balancing.backend import AdminState, Backend
from balancing.fleet import Fleet
from conf.settings import HealthSettings
from health.probes import Prober
from health.scrape import read_report
from health.watch import LastProbe, Watch

logger = logging.getLogger(__name__)

# A scrape costs vLLM's API server about 4 ms of the loop that also writes the tokens
# (measured, 51-67 kB), and us a fifth of one: so no sooner than every 2 s, nor than the
# probes, and for a large fleet so rarely that all together take a hundredth of our time.
SCRAPE_S: Final = 2.0
SCRAPE_S_PER_BACKEND: Final = 0.02
SCRAPE_JITTER: Final = 0.1
SCRAPE_BYTES_MAX: Final = 2_097_152
# A server that serves but has no such metrics is asked rarely: it may be replaced by one with.
NO_METRICS_AFTER: Final = 5
NO_METRICS_S: Final = 60.0
# Compressing 60 kB of metrics would cost vLLM's loop another millisecond.
_PLAIN: Final = {"accept-encoding": "identity"}


class Monitor:
    """Watches backends and reads what they report. Start it once; `stop` ends all of it."""

    def __init__(
        self,
        fleet: Fleet,
        settings: HealthSettings,
        authorizations: Mapping[str, bytes],
        rng: Random,
        tls: Mapping[str, ssl.SSLContext] = MappingProxyType({}),
    ) -> None:
        """`authorizations` and `tls` are by name of pool, where it has them."""
        self._settings = settings
        self._authorizations = authorizations
        self._rng = rng
        self._tls = tls
        self._watches = {
            backend: Watch(backend, pool.backends, sorted(pool.models), settings, rng)
            for pool in fleet.pools
            for backend in pool.backends
        }
        self._tasks: list[asyncio.Task[None]] = []
        self._unseen = set(self._watches)
        self._scrape_s = max(
            SCRAPE_S, settings.interval_s, SCRAPE_S_PER_BACKEND * len(self._watches)
        )
        self.started = asyncio.Event()  # every backend was looked at once

    async def start(self) -> None:
        """Begin to watch; returns at once."""
        for backend, watch in self._watches.items():
            self._tasks.append(asyncio.create_task(self._take_turns(backend, watch)))
            self._tasks.append(asyncio.create_task(self._scrape(backend, watch)))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def last_probes(self, backend: Backend) -> Mapping[str, LastProbe]:
        """How the last probe of each level went."""
        return self._watches[backend].last_probes

    def certain(self, backend: Backend, reason: str) -> None:
        """A request found out that it cannot serve (nobody listens, it drains): out at once."""
        if backend in self._watches:
            self._watches[backend].certain(reason)

    def request_failed(self, backend: Backend) -> None:
        """A request failed for a reason that may be the backend's own."""
        if backend in self._watches:
            self._watches[backend].requests_failed()

    def resume(self, backend: Backend) -> None:
        """Its maintenance is over: it is unknown again, and looked at soon."""
        if backend in self._watches:
            self._watches[backend].resume()

    async def _take_turns(self, backend: Backend, watch: Watch) -> None:
        async with self._session(backend) as session:
            ask = Prober(session, backend.url)
            while True:
                await _surviving(lambda: watch.turn(ask), backend)
                self._unseen.discard(backend)
                if not self._unseen:
                    self.started.set()
                await watch.pause()

    async def _scrape(self, backend: Backend, watch: Watch) -> None:
        pause_s = self._scrape_s * (0.5 + 0.5 * self._rng.random())  # not all at once
        in_vain = 0
        async with self._session(backend) as session:
            while True:
                await asyncio.sleep(pause_s)
                before = backend.report
                await _surviving(lambda: self._read_report(session, backend, watch), backend)
                in_vain = in_vain + 1 if backend.fit and backend.report is before else 0
                pause_s = NO_METRICS_S if in_vain >= NO_METRICS_AFTER else self._scrape_s
                pause_s *= 1.0 + SCRAPE_JITTER * (2.0 * self._rng.random() - 1.0)

    async def _read_report(
        self, session: aiohttp.ClientSession, backend: Backend, watch: Watch
    ) -> None:
        """Read one report; one that cannot be read leaves the last one to fade."""
        if backend.admin_state is AdminState.MAINT:
            return
        own_requests = backend.own.engine_requests
        try:
            async with (
                asyncio.timeout(self._settings.timeout_s),
                session.get(f"{backend.url}/metrics", allow_redirects=False) as answer,
            ):
                text = await answer.content.read(SCRAPE_BYTES_MAX) if answer.status == 200 else b""
                while not answer.content.at_eof() and len(text) < SCRAPE_BYTES_MAX:
                    text += await answer.content.read(SCRAPE_BYTES_MAX - len(text))
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return
        report = read_report(text, monotonic(), own_requests)
        if report is None:
            return
        before, backend.report = backend.report, report
        if before is not None and report.works_since(before):
            backend.progress += 1
        if not report.awake:
            watch.certain("asleep")

    def _session(self, backend: Backend) -> aiohttp.ClientSession:
        key = self._authorizations.get(backend.pool)
        # A fresh connection each: a pooled one says nothing of whether new ones are taken.
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True, ssl=self._tls.get(backend.pool, True)),
            headers=_PLAIN | ({"authorization": key.decode("latin-1")} if key else {}),
        )


async def _surviving(step: Callable[[], Awaitable[None]], backend: Backend) -> None:
    """A backend's tasks must outlive whatever it answers."""
    try:
        await step()
    except Exception:
        logger.exception("probe failed name=%s", backend.name)
