"""The watches and scrapes of the whole fleet: their tasks, and what the rest of the program tells.

Two tasks a backend: one takes the turns of its watch, one reads its metrics.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from time import monotonic
from typing import Final, Protocol

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from balancing.backend import AdminState, Backend
from balancing.fleet import Fleet, Pool
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


class Addresses(Protocol):
    """Where a backend's host is now; `proxy.host.Host`."""

    async def addresses(self) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True)
class Terms:
    """By what a backend is watched; others mean that its tasks begin anew."""

    settings: HealthSettings
    authorization: bytes | None
    host: Addresses
    tls: ssl.SSLContext | None


@dataclass(slots=True)
class _Watched:
    watch: Watch
    terms: Terms
    tasks: tuple[asyncio.Task[None], ...]


class Monitor:
    """Watches the backends that `use` names, and reads what they report. `stop` ends all of it."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._watched: dict[Backend, _Watched] = {}
        self._unseen: set[Backend] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._scrape_s = SCRAPE_S
        self.started = asyncio.Event()  # every backend was looked at once

    def use(
        self,
        fleet: Fleet,
        settings: HealthSettings,
        authorizations: Mapping[str, bytes],
        hosts: Mapping[str, Addresses],
        tls: Mapping[str, ssl.SSLContext],
    ) -> None:
        """Watch this fleet from now on; keys and TLS by pool, hosts by backend; returns at once.

        What is known of a backend stays while it is watched. One that was not
        is unknown, whatever it was before.
        """
        count = len(fleet.backends)
        self._scrape_s = max(SCRAPE_S, settings.interval_s, SCRAPE_S_PER_BACKEND * count)
        for pool in fleet.pools:
            for backend in pool.backends:
                terms = Terms(
                    settings,
                    authorizations.get(pool.name),
                    hosts[backend.name],
                    tls.get(pool.name),
                )
                self._watch(backend, pool, terms)
        for backend in self._watched.keys() - set(fleet.backends):
            self._end(self._watched.pop(backend).tasks)
            self._seen(backend)

    async def stop(self) -> None:
        for watched in self._watched.values():
            self._end(watched.tasks)
        self._watched.clear()
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _watch(self, backend: Backend, pool: Pool, terms: Terms) -> None:
        watched = self._watched.get(backend)
        models = sorted(pool.models)
        if watched is None:
            watch = Watch(backend, pool.backends, models, terms.settings, self._rng)
            watch.resume()
            self._unseen.add(backend)
        else:
            watch = watched.watch
            watch.reconfigure(pool.backends, models, terms.settings)
            if watched.terms == terms:
                return
            self._end(watched.tasks)
        tasks = (
            asyncio.create_task(self._take_turns(backend, watch, terms)),
            asyncio.create_task(self._scrape(backend, watch, terms)),
        )
        self._watched[backend] = _Watched(watch, terms, tasks)

    def _end(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        for task in tasks:
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            task.cancel()

    def _seen(self, backend: Backend) -> None:
        self._unseen.discard(backend)
        if not self._unseen:
            self.started.set()

    def last_probes(self, backend: Backend) -> Mapping[str, LastProbe]:
        """How the last probe of each level went; nothing of one that is not watched."""
        watched = self._watched.get(backend)
        return watched.watch.last_probes if watched is not None else {}

    def certain(self, backend: Backend, reason: str) -> None:
        """A request found out that it cannot serve (nobody listens, it drains): out at once."""
        if backend in self._watched:
            self._watched[backend].watch.certain(reason)

    def request_failed(self, backend: Backend) -> None:
        """A request failed for a reason that may be the backend's own."""
        if backend in self._watched:
            self._watched[backend].watch.requests_failed()

    def resume(self, backend: Backend) -> None:
        """Its maintenance is over: it is unknown again, and looked at soon."""
        if backend in self._watched:
            self._watched[backend].watch.resume()

    async def _take_turns(self, backend: Backend, watch: Watch, terms: Terms) -> None:
        async with _session(terms) as session:
            ask = Prober(session, backend.url)
            while True:
                await _surviving(lambda: watch.turn(ask), backend)
                self._seen(backend)
                await watch.pause()

    async def _scrape(self, backend: Backend, watch: Watch, terms: Terms) -> None:
        pause_s = self._scrape_s * (0.5 + 0.5 * self._rng.random())  # not all at once
        in_vain = 0
        timeout_s = terms.settings.timeout_s
        async with _session(terms) as session:
            while True:
                await asyncio.sleep(pause_s)
                before = backend.report
                await _surviving(lambda: _read_report(session, backend, watch, timeout_s), backend)
                in_vain = in_vain + 1 if backend.fit and backend.report is before else 0
                pause_s = NO_METRICS_S if in_vain >= NO_METRICS_AFTER else self._scrape_s
                pause_s *= 1.0 + SCRAPE_JITTER * (2.0 * self._rng.random() - 1.0)


async def _read_report(
    session: aiohttp.ClientSession, backend: Backend, watch: Watch, timeout_s: float
) -> None:
    """Read one report; one that cannot be read leaves the last one to fade."""
    if backend.admin_state is AdminState.MAINT:
        return
    # Of ours, the most that the engine may count when it is read: not to be taken for others'.
    backend.engine_requests_peak = backend.own.engine_requests
    try:
        async with (
            asyncio.timeout(timeout_s),
            session.get(f"{backend.url}/metrics", allow_redirects=False) as answer,
        ):
            text = await answer.content.read(SCRAPE_BYTES_MAX) if answer.status == 200 else b""
            while not answer.content.at_eof() and len(text) < SCRAPE_BYTES_MAX:
                text += await answer.content.read(SCRAPE_BYTES_MAX - len(text))
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return
    report = read_report(text, monotonic(), backend.engine_requests_peak)
    if report is None:
        return
    backend.take(report)
    if not report.awake:
        watch.certain("asleep")


def _session(terms: Terms) -> aiohttp.ClientSession:
    key = terms.authorization
    # A fresh connection each: a pooled one says nothing of whether new ones are taken.
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            resolver=_Resolver(terms.host),
            use_dns_cache=False,
            force_close=True,
            ssl=terms.tls or True,
        ),
        headers=_PLAIN | ({"authorization": key.decode("latin-1")} if key else {}),
    )


class _Resolver(AbstractResolver):
    """Probes go where requests go; aiohttp tries several addresses almost at once."""

    def __init__(self, host: Addresses) -> None:
        self._host = host

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in await self._host.addresses()
        ]

    async def close(self) -> None:
        pass


async def _surviving(step: Callable[[], Awaitable[None]], backend: Backend) -> None:
    """A backend's tasks must outlive whatever it answers."""
    try:
        await step()
    except Exception:
        logger.exception("probe failed name=%s", backend.name)
