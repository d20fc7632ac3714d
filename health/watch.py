"""The watch over one backend: looks at it in turns, and moves its state.

This and nothing else writes a backend's `state`, `reason`, `doubted` and
`slow_start`. What requests saw comes in by `certain` and `requests_failed`, at
once; probes come in turns, sooner while in doubt.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from time import monotonic, time
from typing import Final, Protocol

from balancing.backend import AdminState, Backend, State
from balancing.slow_start import SlowStart
from conf.settings import HealthSettings
from health.machine import Health
from health.probes import Outcome, Task

logger = logging.getLogger(__name__)

# HAProxy's docs: a few percent of spread keep checks of many backends apart; we
# also are several replicas, so more.
JITTER: Final = 0.2
# While a backend is in doubt, probes come this much sooner: a fall of 3 at 2 s
# then takes some 2.5 s instead of 6.
DOUBT_PACE: Final = 0.25
# Requests in flight and no token for so long, beside what the oldest prompt takes at the
# measured rate: a deep probe comes at once. Engines prefill first come first served, so
# the prompts behind it buy no time; the rate, a lower bound, is patient enough.
STALL_S: Final = 2.0
PREFILL_S_MAX: Final = 60.0
# A backend that no deep probe can be made for (transcription) shows only by its requests
# whether it works; the longest file takes less.
UNPROBED_STALL_S: Final = 60.0


# What a server shows that has just been started: nobody listens, or not for long.
_LOADING: Final = frozenset({"loading", "unreachable", "timeout", "status_503"})


class Asks(Protocol):
    """How a backend is asked; `probes.Prober` over HTTP."""

    async def live(self, timeout_s: float) -> Outcome: ...
    async def ready(self, timeout_s: float) -> Outcome: ...
    async def deep(
        self, model: str, task: Task | None, timeout_s: float
    ) -> tuple[Task | None, Outcome]: ...


@dataclass(slots=True)
class LastProbe:
    """How a level's last probe went, for people."""

    at_unix_s: float
    passed: bool
    reason: str


class Watch:
    """Watches `backend`, one of the `peers` of its pool."""

    def __init__(
        self,
        backend: Backend,
        peers: Sequence[Backend],
        models: Sequence[str],
        settings: HealthSettings,
        rng: Random,
        now: Callable[[], float] = monotonic,
    ) -> None:
        """`models` are those that the configuration names for the pool, if any."""
        self.backend = backend
        self._peers = peers
        self._models = models
        self._settings = settings
        self._rng = rng
        self._now = now
        self._health = self._unknown()
        self._task: Task | None = None
        self._sooner = asyncio.Event()
        self._progress = backend.progress
        self._progress_at_s = now()
        self._deep_progress = backend.progress
        # Not all at once: the first one comes somewhere in the first interval's second half.
        self._next_deep_s = now() + settings.deep.interval_s * (0.5 + 0.5 * rng.random())
        self.last_probes: dict[str, LastProbe] = {}

    def reconfigure(
        self, peers: Sequence[Backend], models: Sequence[str], settings: HealthSettings
    ) -> None:
        """Go on by these; what is known of the backend stays."""
        self._peers = peers
        self._models = models
        if settings == self._settings:
            return
        self._settings = settings
        self._health.set_thresholds(
            fall=settings.fall, rise=settings.rise, deep_fall=settings.deep.fall
        )
        soon_s = settings.deep.interval_s * (0.5 + 0.5 * self._rng.random())
        self._next_deep_s = min(self._next_deep_s, self._now() + soon_s)

    # What requests and scrapes saw ----------------------------------------------------------

    def certain(self, reason: str) -> None:
        """It cannot serve: refused, draining, asleep. Out at once, and probed soon."""
        self._health.down(self._now())
        self._settle(reason)
        self._sooner.set()

    def requests_failed(self) -> None:
        """A request failed for a reason of the backend's own; it counts its runs itself.

        Two in a row ask for a deep probe: traffic goes elsewhere meanwhile, so it might be
        long until there are enough of them to tell.
        """
        now_s = self._now()
        in_row = self.backend.failures_in_row
        if in_row >= 2:
            self._next_deep_s = min(self._next_deep_s, now_s)
        self._health.requests_failed(now_s, in_row, may_eject=self._may_eject())
        self._settle("failing")

    def resume(self) -> None:
        """Its maintenance is over. What was known of it is void: it may be another server now."""
        self._health = self._unknown()
        self._task = None
        self._settle("loading")
        self._sooner.set()

    # Turns ------------------------------------------------------------------------------------

    async def turn(self, ask: Asks) -> None:
        """One look: live, ready, and deep when it is due."""
        if self.backend.admin_state is AdminState.MAINT:
            return
        timeout_s = self._settings.timeout_s
        progress = self.backend.progress
        outcome = await ask.live(timeout_s)
        self._note("live", outcome)
        if outcome.passed:
            outcome = await ask.ready(timeout_s)
            if outcome.models and self._models and not self._named(outcome.models):
                outcome = Outcome("no_models")
            self._note("ready", outcome)
        now_s = self._now()
        if outcome.passed:
            self.backend.models = outcome.models
            self._health.passed()
        elif outcome.certain:
            self._health.down(now_s)
        elif outcome.reason != "timeout" or self.backend.progress == progress:
            # A timeout while streams progress is load.
            self._health.failed(now_s, may_eject=self._may_eject())
        self._settle(outcome.reason)
        if outcome.passed and self._deep_due(now_s):
            await self._look_deep(ask)
        slow_start = self.backend.slow_start
        if slow_start is not None and slow_start.over(self._now()):
            self._health.warmed()
            self._settle("")

    async def pause(self) -> None:
        """Wait for the next turn, or for a reason to take it sooner."""
        pause_s = self._settings.interval_s
        if self.backend.state not in (State.READY, State.WARMING):
            pause_s *= DOUBT_PACE
        try:
            async with asyncio.timeout(self._jittered(pause_s)):
                await self._sooner.wait()
        except TimeoutError:
            return
        self._sooner.clear()
        # Requests may report many refusals a second; the probe answers them all.
        await asyncio.sleep(self._settings.interval_s * DOUBT_PACE)

    # Deep -------------------------------------------------------------------------------------

    def _deep_due(self, now_s: float) -> bool:
        backend, health = self.backend, self._health
        if backend.progress != self._progress or not backend.own.requests:
            self._progress = backend.progress
            self._progress_at_s = now_s
        if backend.state is State.EJECTED:
            return health.wants_deep(now_s) and not self._asleep(now_s)
        if backend.state is State.STARTING:
            return False
        if health.deep_in_doubt or self._stalled_s(now_s) > STALL_S:
            return True
        if now_s < self._next_deep_s:
            return False
        if backend.progress != self._deep_progress:  # streams are a deep probe that costs nothing
            self._deep_passed(now_s)
            return False
        return True

    async def _look_deep(self, ask: Asks) -> None:
        backend = self.backend
        progress = backend.progress
        # It waits behind the prompt that is being prefilled, for what is left of that.
        left_s = max(0.0, -self._stalled_s(self._now()))
        timeout_s = self._settings.deep.timeout_s + left_s
        self._task, outcome = await ask.deep(self._model(), self._task, timeout_s)
        now_s = self._now()
        if self._task is Task.NONE and self._stalled_s(now_s) > UNPROBED_STALL_S:
            outcome = Outcome("hung")
        self._note("deep", outcome)
        back = backend.state is State.EJECTED and outcome.busy  # it works, for others
        if outcome.passed or back or (backend.fit and backend.progress != progress):
            self._deep_passed(now_s)
        elif outcome.certain:
            self._health.down(now_s)
        elif outcome.busy:
            self._next_deep_s = now_s + self._jittered(self._settings.deep.interval_s)
        else:
            self._health.deep_failed(now_s, may_eject=self._may_eject())
        self._settle(outcome.reason)

    def _deep_passed(self, now_s: float) -> None:
        self._health.deep_passed(now_s)
        self._deep_progress = self.backend.progress
        self._next_deep_s = now_s + self._jittered(self._settings.deep.interval_s)
        self._settle("")

    def _asleep(self, now_s: float) -> bool:
        """Whether it says itself that it would not answer."""
        report = self.backend.report
        return report is not None and not report.awake and report.freshness(now_s) > 0

    def _stalled_s(self, now_s: float) -> float:
        """How long it has shown no progress, beyond what the prompt at work may take."""
        prefill_s = min(PREFILL_S_MAX, self.backend.head_prefill_s)
        return now_s - self._progress_at_s - prefill_s

    def _model(self) -> str:
        models = self.backend.models or {}
        return next((model for model in self._models if model in models), next(iter(models), ""))

    def _named(self, models: dict[str, bytes]) -> bool:
        return any(model in models for model in self._models)

    # State ------------------------------------------------------------------------------------

    def _unknown(self) -> Health:
        settings = self._settings
        return Health(
            fall=settings.fall, rise=settings.rise, deep_fall=settings.deep.fall, rng=self._rng
        )

    def _may_eject(self) -> bool:
        """Whether the pool can spare it on suspicion: never the last, nor more than half."""
        others = [peer for peer in self._peers if peer is not self.backend]
        out = sum(peer.state is State.EJECTED for peer in others)
        return any(peer.fit for peer in others) and 2 * (out + 1) <= len(self._peers)

    def _settle(self, reason: str) -> None:
        """Bring the backend's state in line with its health."""
        backend, health = self.backend, self._health
        before = backend.state
        backend.state = health.state
        backend.doubted = health.doubted
        if health.state in (State.READY, State.WARMING):
            backend.reason = ""
        elif reason:
            loads = health.state is State.STARTING and reason in _LOADING
            backend.reason = "loading" if loads else reason
        if health.state is before:
            return
        if {before, health.state} != {State.READY, State.SUSPECT}:  # a doubt ends no run
            backend.failures_in_row = 0
        if health.state is State.EJECTED:
            self._task = None  # another server may come back in its place
            if backend.reason == "unreachable":  # nobody listens: its caches are gone
                backend.restarted()
        if health.state is State.WARMING:
            backend.back_since_s = self._now()
            backend.penalty.forgive()
            backend.slow_start = SlowStart(
                backend.back_since_s,
                self._settings.slow_start_s,
                own_tokens=backend.taken_tokens,
                pool_tokens=sum(peer.taken_tokens for peer in self._peers),
            )
        else:
            backend.slow_start = None
        logger.log(
            logging.WARNING if health.state is State.EJECTED else logging.INFO,
            "backend %s name=%s was=%s reason=%s",
            health.state,
            backend.name,
            before,
            backend.reason or "-",
        )

    def _note(self, level: str, outcome: Outcome) -> None:
        self.last_probes[level] = LastProbe(time(), outcome.passed, outcome.reason)

    def _jittered(self, time_s: float) -> float:
        return time_s * (1.0 + JITTER * (2.0 * self._rng.random() - 1.0))
