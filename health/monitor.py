"""The loop that probes every backend and moves its state.

One task a backend: a probe, a jittered pause, shorter while in doubt. The rest
of the program tells it what it saw by `refused`. This is the only place that
writes a backend's `state` and `reason`.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random
from time import time
from typing import Final

import aiohttp

from balancing.backend import Backend, State
from conf.settings import HealthSettings
from health import probes
from health.machine import Health

logger = logging.getLogger(__name__)

# HAProxy's docs: a few percent of spread keep checks of many backends apart; we
# also are several replicas, so more.
JITTER: Final = 0.2
# While a backend is in doubt, probes come this much sooner: a fall of 3 at 2 s
# then takes some 2.5 s instead of 6.
DOUBT_PACE: Final = 0.25


@dataclass(slots=True)
class LastProbe:
    """How a level's last probe went, for people."""

    at_unix_s: float
    passed: bool
    reason: str


class Monitor:
    """Probes backends and keeps their health. Start it once; `stop` ends all probes."""

    def __init__(
        self,
        backends: Iterable[Backend],
        settings: HealthSettings,
        authorizations: Mapping[str, bytes],
        rng: Random,
    ) -> None:
        self._settings = settings
        self._authorizations = authorizations
        self._rng = rng
        self._health = {
            backend: Health(fall=settings.fall, rise=settings.rise) for backend in backends
        }
        self._tasks: list[asyncio.Task[None]] = []
        self._sooner = {backend: asyncio.Event() for backend in self._health}
        self._unprobed = set(self._health)
        self.last_probes: dict[Backend, dict[str, LastProbe]] = {
            backend: {} for backend in self._health
        }
        self.started = asyncio.Event()  # every backend was probed once

    async def start(self) -> None:
        """Begin to probe; returns at once."""
        for backend in self._health:
            self._tasks.append(asyncio.create_task(self._watch(backend)))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def refused(self, backend: Backend) -> None:
        """A request found nobody listening: out at once, and probed at once."""
        health = self._health.get(backend)
        if health is None:
            return
        self._move(backend, health.refused(), "unreachable")
        self._sooner[backend].set()

    async def _watch(self, backend: Backend) -> None:
        sooner = self._sooner[backend]
        async with self._session(backend) as session:
            while True:
                try:
                    await self._probe(session, backend)
                except Exception:  # a probe's task must outlive whatever a backend answers
                    logger.exception("probe failed name=%s", backend.name)
                self._probed(backend)
                try:
                    async with asyncio.timeout(self._pause_s(backend)):
                        await sooner.wait()
                except TimeoutError:
                    continue
                sooner.clear()
                # Requests may report many refusals a second; the probe answers them all.
                await asyncio.sleep(self._settings.interval_s * DOUBT_PACE)

    def _session(self, backend: Backend) -> aiohttp.ClientSession:
        key = self._authorizations.get(backend.pool)
        # A fresh connection each: a pooled one says nothing of whether new ones are taken.
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True),
            headers={"authorization": key.decode("latin-1")} if key else None,
        )

    async def _probe(self, session: aiohttp.ClientSession, backend: Backend) -> None:
        timeout_s = self._settings.timeout_s
        outcome = await probes.live(session, backend.url, timeout_s)
        self._note(backend, "live", outcome)
        if outcome.passed:
            outcome = await probes.ready(session, backend.url, timeout_s)
            self._note(backend, "ready", outcome)
        health = self._health[backend]
        if outcome.passed:
            backend.models = outcome.models
            self._move(backend, health.passed(), "")
        elif outcome.refused:
            self._move(backend, health.refused(), "unreachable")
        else:
            self._move(backend, health.failed(), outcome.reason)

    def _note(self, backend: Backend, level: str, outcome: probes.Outcome) -> None:
        self.last_probes[backend][level] = LastProbe(time(), outcome.passed, outcome.reason)

    def _move(self, backend: Backend, state: State, reason: str) -> None:
        before = backend.state
        backend.state = state
        if state is State.READY:
            backend.reason = ""
        elif reason:
            backend.reason = "loading" if state is State.STARTING else reason
        if state is not before:
            level = logging.WARNING if state is State.EJECTED else logging.INFO
            logger.log(
                level,
                "backend %s name=%s was=%s reason=%s",
                state,
                backend.name,
                before,
                backend.reason or "-",
            )

    def _probed(self, backend: Backend) -> None:
        self._unprobed.discard(backend)
        if not self._unprobed:
            self.started.set()

    def _pause_s(self, backend: Backend) -> float:
        pause_s = self._settings.interval_s
        if backend.state is not State.READY:
            pause_s *= DOUBT_PACE
        return pause_s * (1.0 + JITTER * (2.0 * self._rng.random() - 1.0))
