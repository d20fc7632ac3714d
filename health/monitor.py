"""The probing and scraping of the whole fleet: its tasks and its interface to the proxy.

Each backend has two tasks. One takes the turns of its watch, the other reads its metrics.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from random import Random
from time import monotonic
from typing import Final

from penstock.balancing.backend import AdminState, Backend
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.outliers.penalties import Cause
from penstock.conf.health import HealthSettings
from penstock.health.machine import ToReturn
from penstock.health.pace import Pace, Places
from penstock.health.probes import Client, Connections, LastProbe, Outcome, Prober, Shortage
from penstock.health.scrape import METRICS, METRICS_BYTES_MAX, TooLarge, read_report
from penstock.health.watch import Watch

logger = logging.getLogger(__name__)

# A scrape costs vLLM's API server about 4 ms (measured, 51-67 kB) of the loop that also writes the
# tokens, and this proxy a fifth of a ms. So scrapes come no more often than every 2 s or than the
# probes, and less often in a large fleet.
SCRAPE_S: Final = 2.0
SCRAPE_S_PER_BACKEND: Final = 0.02
SCRAPE_JITTER: Final = 0.1
# How many backends without requests may be probed at once. Those that hang take 20 of these places:
# 200 turns a second (`pace.py`), and each keeps its place for 0.1 s.
PLACES: Final = 32
# A server without such metrics is asked rarely: a server with metrics may replace it.
NO_METRICS_AFTER: Final = 5
NO_METRICS_S: Final = 60.0
# How long a backend may load an adapter. One that takes longer is seen in its list, later.
LOAD_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Terms:
    """How a backend is watched. When the terms change, its tasks start anew."""

    settings: HealthSettings
    authorization: bytes | None
    connections: Connections
    tls: object

    def client(self) -> Client:
        return self.connections.questions(self.authorization)


@dataclass(slots=True)
class _Watched:
    watch: Watch
    terms: Terms
    tasks: tuple[asyncio.Task[None], ...]


class Monitor:
    """Watches the backends given to `use` and reads their reports. `stop` ends everything."""

    def __init__(
        self,
        rng: Random,
        is_new: Callable[[Backend], None] | None = None,
        now: Callable[[], float] = monotonic,
    ) -> None:
        """`is_new`: told of a backend that was added beside others, or is another engine now."""
        self._rng = rng
        self._now = now
        self._is_new = is_new
        self._watched: dict[Backend, _Watched] = {}
        self._unseen: set[Backend] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._scrape_s = SCRAPE_S
        self._pace = Pace()
        self._shortage = Shortage()
        self._places = Places(PLACES, asyncio.get_running_loop().call_later)
        self.started = asyncio.Event()  # every backend was probed once

    def use(
        self,
        fleet: Fleet,
        settings: HealthSettings,
        authorizations: Mapping[str, bytes],
        connections: Mapping[str, Connections],
    ) -> None:
        """Watch this fleet from now on. Keys are by pool, connections by backend.

        What is known of a backend stays while it is watched. A backend that was not watched
        before counts as unknown.
        """
        count = len(fleet.backends)
        self._scrape_s = max(SCRAPE_S, settings.interval_s, SCRAPE_S_PER_BACKEND * count)
        self._pace = Pace(fleet.backends)
        used = {each.pool for each in fleet.backends if each in self._watched}
        for pool in fleet.pools:
            for backend in pool.backends:
                way = connections[backend.name]
                terms = Terms(settings, authorizations.get(backend.name), way, way.tls)
                self._watch(backend, pool, terms, beside=pool.name in used)
        for backend in self._watched.keys() - set(fleet.backends):
            self._end(self._watched.pop(backend).tasks)
            self._seen(backend)

    async def stop(self) -> None:
        for watched in self._watched.values():
            self._end(watched.tasks)
        self._watched.clear()
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _watch(self, backend: Backend, pool: Pool, terms: Terms, *, beside: bool) -> None:
        """`beside`: its pool has others that were watched before."""
        watched = self._watched.get(backend)
        models = sorted(pool.models)
        if watched is None:
            watch = Watch(backend, pool.backends, models, terms.settings, self._rng, self._now)
            watch.resume()
            if self._is_new is not None:
                watch.is_new = self._is_new
                if beside:
                    watch.arrived()
            self._unseen.add(backend)
        else:
            watch = watched.watch
            watch.reconfigure(pool.backends, models, terms.settings)
        watch.pace, watch.shortage = self._pace, self._shortage
        if watched is not None:
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
        """How the last probe of each level went. Empty for a backend that is not watched."""
        watched = self._watched.get(backend)
        return watched.watch.last_probes if watched is not None else {}

    def to_return(self, backend: Backend) -> ToReturn | None:
        """What is missing for the return of an ejected backend."""
        watched = self._watched.get(backend)
        return watched.watch.to_return() if watched is not None else None

    def certain(self, backend: Backend, reason: str) -> None:
        """A request showed that it cannot serve (nobody listens, it drains): eject it at once."""
        if backend in self._watched:
            self._watched[backend].watch.certain(reason)

    def request_failed(self, backend: Backend, cause: Cause) -> None:
        """A request failed. `cause` says what may explain it."""
        if backend in self._watched:
            self._watched[backend].watch.requests_failed(cause)

    def refused(self, backend: Backend, *, key: bool) -> None:
        """It refused the pool's own `key`, or refused several clients what other backends serve."""
        if backend in self._watched:
            self._watched[backend].watch.refused(key=key)

    def worse(self, backend: Backend, why: str) -> bool:
        """It is new, and shown to be worse than its peers. Returns whether it was taken out."""
        return backend in self._watched and self._watched[backend].watch.worse(why)

    def accepted(self, backend: Backend) -> None:
        """An operator wants it back that was taken out as worse than its peers."""
        if backend in self._watched:
            self._watched[backend].watch.accepted()

    def heard_nothing(self) -> None:
        """The loop did not run for a while: probes under way say nothing."""
        for watched in self._watched.values():
            watched.watch.heard_nothing()

    def resume(self, backend: Backend) -> None:
        """Its maintenance is over: its state is unknown again, and it is probed soon."""
        if backend in self._watched:
            self._watched[backend].watch.resume()

    async def load_adapter(self, backend: Backend, name: str, path: str) -> Outcome:
        """Have a backend load an adapter. It passes once the backend lists it."""
        watched = self._watched.get(backend)
        if watched is None:
            return Outcome("unwatched")
        terms = watched.terms
        client = terms.client()
        prober = Prober(client, keyed=terms.authorization is not None)
        try:
            outcome = await prober.load_adapter(name, path, LOAD_S, terms.settings.timeout_s)
        finally:
            client.hang_up()
        if outcome.passed:
            backend.models, backend.contexts = outcome.models, outcome.contexts
        return outcome

    async def _take_turns(self, backend: Backend, watch: Watch, terms: Terms) -> None:
        client = terms.client()
        ask = Prober(client, keyed=terms.authorization is not None)
        if not watch.last_probes:
            await asyncio.sleep(self._pace.first_s * self._rng.random())
        while True:
            async with self._place(watch):
                await _surviving(lambda: watch.turn(ask), backend, client)
            self._seen(backend)
            await watch.pause()

    def _place(self, watch: Watch) -> AbstractAsyncContextManager[None]:
        """The permission for a turn. A backend with requests needs none."""
        return nullcontext() if watch.used else self._places.one()

    async def _scrape(self, backend: Backend, watch: Watch, terms: Terms) -> None:
        pause_s = self._scrape_s * (0.5 + 0.5 * self._rng.random())  # not all at once
        in_vain = requests = 0
        idle_until_s = 0.0
        timeout_s = terms.settings.timeout_s
        client = terms.client()
        while True:
            await asyncio.sleep(pause_s)
            if backend.requests_total == requests and self._now() < idle_until_s:
                continue
            requests = backend.requests_total
            idle_until_s = self._now() + self._pace.idle_s * (0.5 + 0.5 * self._rng.random())
            before = backend.report
            await _surviving(
                lambda: _read_report(client, backend, watch, timeout_s, self._now), backend, client
            )
            in_vain = in_vain + 1 if backend.fit and backend.report is before else 0
            pause_s = NO_METRICS_S if in_vain >= NO_METRICS_AFTER else self._scrape_s
            pause_s *= 1.0 + SCRAPE_JITTER * (2.0 * self._rng.random() - 1.0)


async def _read_report(
    client: Client,
    backend: Backend,
    watch: Watch,
    timeout_s: float,
    now: Callable[[], float] = monotonic,
) -> None:
    """Read one report. If that fails, the last report stays and fades."""
    if backend.admin_state is AdminState.MAINT:
        return
    # The most requests of ours that the report may count. They must not be taken for others'.
    backend.engine_requests_peak = backend.own.engine_requests
    answer = await client.get(METRICS, timeout_s, METRICS_BYTES_MAX)
    if answer.own:  # the proxy itself lacks something; the next probe will log it
        return
    if answer.reason and answer.reason != "too_large":
        watch.look()
        return
    try:
        if not answer.whole or answer.reason:
            raise TooLarge
        text = answer.body if answer.status == 200 else b""
        now_s = now()
        report = await read_report(text, now_s, backend.known_requests(now_s))
    except TooLarge:
        watch.metrics_too_large()
        return
    except ValueError:
        watch.look()
        return
    watch.metrics_read()
    if report is None:
        return
    backend.take(report)
    if not report.awake:
        watch.certain("asleep")


async def _surviving(step: Callable[[], Awaitable[None]], backend: Backend, client: Client) -> None:
    """Run a step. The task must survive any answer. The connection ends with each step."""
    try:
        await step()
    except Exception:
        logger.exception("probe failed name=%s", backend.name)
    finally:
        client.hang_up()
