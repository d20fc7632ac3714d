"""The watches and scrapes of the whole fleet: their tasks, and what the rest of the program tells.

Two tasks a backend: one takes the turns of its watch, one reads its metrics.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from random import Random
from time import monotonic
from typing import Final

from balancing.accusers import Cause
from balancing.backend import AdminState, Backend
from balancing.fleet import Fleet, Pool
from conf.settings import HealthSettings
from health.line import Overlong
from health.pace import Pace
from health.places import Places
from health.probes import Prober
from health.questions import Addresses, Questions
from health.scrape import METRICS, METRICS_BYTES_MAX, TooLarge, read_report
from health.shortage import Lacking, Shortage
from health.watch import LastProbe, Watch

logger = logging.getLogger(__name__)

# A scrape costs vLLM's API server about 4 ms of the loop that also writes the tokens
# (measured, 51-67 kB), and us a fifth of one: so no sooner than every 2 s, nor than the
# probes, and for a large fleet more rarely.
SCRAPE_S: Final = 2.0
SCRAPE_S_PER_BACKEND: Final = 0.02
SCRAPE_JITTER: Final = 0.1
# Turns under way at once of backends without requests: of those that were well when asked last, and
# of those that were not.
PLACES: Final = 32
PLACES_IN_DOUBT: Final = 16
# A server that serves but has no such metrics is asked rarely: it may be replaced by one with.
NO_METRICS_AFTER: Final = 5
NO_METRICS_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Terms:
    """By what a backend is watched; others mean that its tasks begin anew."""

    settings: HealthSettings
    authorization: bytes | None
    host: Addresses
    tls: ssl.SSLContext | None

    def questions(self, url: str) -> Questions:
        return Questions(url, self.host, self.authorization, self.tls)


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
        self._pace = Pace()
        self._shortage = Shortage()
        later = asyncio.get_running_loop().call_later
        self._places = Places(PLACES, later)
        self._places_in_doubt = Places(PLACES_IN_DOUBT, later)
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
        self._pace = Pace(fleet.backends)
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
        """How the last probe of each level went; nothing of one that is not watched."""
        watched = self._watched.get(backend)
        return watched.watch.last_probes if watched is not None else {}

    def certain(self, backend: Backend, reason: str) -> None:
        """A request found out that it cannot serve (nobody listens, it drains): out at once."""
        if backend in self._watched:
            self._watched[backend].watch.certain(reason)

    def request_failed(self, backend: Backend, cause: Cause) -> None:
        """A request failed for a reason that may be the backend's own, or for `cause`."""
        if backend in self._watched:
            self._watched[backend].watch.requests_failed(cause)

    def refused(self, backend: Backend, *, key: bool) -> None:
        """It refused the pool's own `key`, or several clients what its peers do not."""
        if backend in self._watched:
            self._watched[backend].watch.refused(key=key)

    def slept(self, time_s: float) -> None:
        """The process did not run for so long: probes that were under way say nothing."""
        for watched in self._watched.values():
            watched.watch.slept(time_s)

    def resume(self, backend: Backend) -> None:
        """Its maintenance is over: it is unknown again, and looked at soon."""
        if backend in self._watched:
            self._watched[backend].watch.resume()

    async def _take_turns(self, backend: Backend, watch: Watch, terms: Terms) -> None:
        questions = terms.questions(backend.url)
        ask = Prober(questions, keyed=terms.authorization is not None)
        if not watch.last_probes:
            await asyncio.sleep(self._pace.first_s * self._rng.random())
        while True:
            async with self._place(watch):
                await _surviving(lambda: watch.turn(ask), backend, questions)
            self._seen(backend)
            await watch.pause()

    def _place(self, watch: Watch) -> AbstractAsyncContextManager[None]:
        """Leave for a turn, at once for who has requests."""
        if watch.used:
            return nullcontext()
        return (self._places_in_doubt if watch.suspected else self._places).one()

    async def _scrape(self, backend: Backend, watch: Watch, terms: Terms) -> None:
        pause_s = self._scrape_s * (0.5 + 0.5 * self._rng.random())  # not all at once
        in_vain = requests = 0
        idle_until_s = 0.0
        timeout_s = terms.settings.timeout_s
        questions = terms.questions(backend.url)
        while True:
            await asyncio.sleep(pause_s)
            if backend.requests_total == requests and monotonic() < idle_until_s:
                continue
            requests = backend.requests_total
            idle_until_s = monotonic() + self._pace.idle_s * (0.5 + 0.5 * self._rng.random())
            before = backend.report
            await _surviving(
                lambda: _read_report(questions, backend, watch, timeout_s), backend, questions
            )
            in_vain = in_vain + 1 if backend.fit and backend.report is before else 0
            pause_s = NO_METRICS_S if in_vain >= NO_METRICS_AFTER else self._scrape_s
            pause_s *= 1.0 + SCRAPE_JITTER * (2.0 * self._rng.random() - 1.0)


async def _read_report(
    questions: Questions, backend: Backend, watch: Watch, timeout_s: float
) -> None:
    """Read one report; one that cannot be read leaves the last one to fade."""
    if backend.admin_state is AdminState.MAINT:
        return
    # Of ours, the most that the engine may count when it is read: not to be taken for others'.
    backend.engine_requests_peak = backend.own.engine_requests
    try:
        async with asyncio.timeout(timeout_s):
            answer = await questions.get(METRICS, METRICS_BYTES_MAX)
            if not answer.whole:
                raise TooLarge
            text = answer.body if answer.status == 200 else b""
            report = await read_report(text, monotonic(), backend.engine_requests_peak)
    except (TooLarge, Overlong):
        watch.metrics_too_large()
        return
    except Lacking:  # what is odd is our own; the next probe tells of it
        return
    except (OSError, ValueError):  # too late, too
        watch.look()
        return
    if report is None:
        return
    backend.take(report)
    if not report.awake:
        watch.certain("asleep")


async def _surviving(
    step: Callable[[], Awaitable[None]], backend: Backend, questions: Questions
) -> None:
    """A backend's tasks must outlive whatever it answers; its connection ends with each step."""
    try:
        await step()
    except Exception:
        logger.exception("probe failed name=%s", backend.name)
    finally:
        questions.hang_up()
