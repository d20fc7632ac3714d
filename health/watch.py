"""The watch over one backend: probes it in turns and changes its state.

What requests find comes in at once (`findings.py`). Probes come in turns, more often while the
backend is in doubt.
"""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from time import monotonic
from typing import Final

from penstock.balancing.backend import AdminState, Backend, State
from penstock.conf.health import HealthSettings
from penstock.health.deep import PROBES_ROW, Asks
from penstock.health.engine import Engine
from penstock.health.findings import OTHERS_AGREE, Findings
from penstock.health.pace import Pace
from penstock.health.probes import KEY_REFUSED, Outcome
from penstock.health.rest import Rest
from penstock.health.shortage import Shortage
from penstock.health.stall import STALL_S
from penstock.health.tasks import Task

# HAProxy's documentation: a spread of a few percent keeps the checks of many backends apart. There
# may also be several replicas of this proxy, so the spread is larger.
JITTER: Final = 0.2
# While a backend is in doubt, its probes come this much sooner. A fall of 3 at 2 s then takes
# some 2.5 s instead of 6.
DOUBT_PACE: Final = 0.25
AT_ONCE_PACE: Final = 0.05
# The pool's key is missing: the probe was refused, which says nothing.
_NOT_ALLOWED: Final = frozenset(f"status_{status}" for status in KEY_REFUSED)


class Watch(Findings):
    """Watches `backend`, which is one of the `peers` in its pool."""

    def __init__(
        self,
        backend: Backend,
        peers: Sequence[Backend],
        models: Sequence[str],
        settings: HealthSettings,
        rng: Random,
        now: Callable[[], float] = monotonic,
    ) -> None:
        """`models`: the models that the configuration names for the pool, if any."""
        super().__init__(backend, peers, settings, rng, now)
        self._models = models
        self._rest = Rest(self._next_look_s, self.is_due)
        self._engine = Engine(backend)
        self._deep_progress = backend.progress
        # The first deep probe comes in the second half of the first interval: not all at once.
        self._next_deep_s = now() + settings.deep.interval_s * (0.5 + 0.5 * rng.random())
        self._pauses = 0  # how often the loop did not run for a while
        self._turned_s = now()  # the end of the last turn
        self._idle_until_s = 0.0  # without requests it need not be probed before this
        self._requests_seen = 0  # its total of requests at the last turn
        self.pace = Pace()  # shared by the fleet, like `shortage`
        self.shortage = Shortage()

    def reconfigure(
        self, peers: Sequence[Backend], models: Sequence[str], settings: HealthSettings
    ) -> None:
        """Use new settings. What is known of the backend stays."""
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

    def heard_nothing(self) -> None:
        """The loop did not run for a while: neither probes nor streams could be heard."""
        self._pauses += 1
        self._stall.begin(self._now())

    def _rouse(self) -> None:
        self._rest.call()

    # Turns ------------------------------------------------------------------------------------

    async def turn(self, ask: Asks) -> None:
        """Take one turn: a live and a ready probe, and a deep one when it is due."""
        if self.backend.admin_state is AdminState.MAINT:
            self._idle_until_s = 0.0
            return
        self._health.refusing = self._now() < self._refused_until_s
        timeout_s = self._settings.timeout_s
        progress, pauses = self.backend.progress, self._pauses
        outcome = await ask.live(timeout_s)
        self._note("live", outcome)
        if outcome.passed:
            outcome = await ask.ready(timeout_s)
            if outcome.models and self._models and not outcome.models.keys() & set(self._models):
                outcome = Outcome("no_models")
            self._note("ready", outcome)
        if outcome.passed and self._engine.is_due:
            await self._look_at_engine(ask, outcome)
        if self._pauses != pauses:
            self._rest.call()
            return
        now_s = self._now()
        if not outcome.own:
            starting = self.backend.state is State.STARTING
            self.backend.cold_start.probed(outcome.reason, now_s, starting=starting)
        self._count(outcome, now_s, streams=self.backend.progress != progress)
        self._set_state("" if outcome.own else outcome.reason)
        if outcome.passed and self._deep_due(now_s):
            await self._look_deep(ask)
        slow_start = self.backend.slow_start
        if slow_start is not None and slow_start.over(self._now()):
            self._health.warmed()
            self._set_state("")
        self._turned_s = self._now()
        self._requests_seen = self.backend.requests_total
        # Spread the turns: all backends began together.
        self._idle_until_s = self._turned_s + self.pace.idle_s * (0.5 + 0.5 * self._rng.random())

    async def _look_at_engine(self, ask: Asks, ready: Outcome) -> None:
        """Ask what engine is there now. Another one is judged, and so is one that was worse and
        was restarted since."""
        version = await ask.version(self._settings.timeout_s)
        if version is None:
            return
        restarted = self._engine.restarted and self._health.held
        if self._engine.tell(version, ready.models or {}) or restarted:
            self.replaced()

    def _count(self, outcome: Outcome, now_s: float, *, streams: bool) -> None:
        """Count the result of a live and a ready probe. `streams`: some progressed meanwhile."""
        if outcome.own:  # as if there had been no turn
            self.shortage.tell(outcome.reason, now_s)
        elif outcome.passed:
            self.backend.models, self.backend.contexts = outcome.models, outcome.contexts
            self._health.passed()
        elif outcome.certain:
            self._health.down(now_s)
        elif outcome.reason != "timeout" or not streams:
            # A timeout while streams progress means load.
            late = outcome.reason == "timeout"
            self._health.failed(now_s, may_eject=self._may_eject(), late=late)

    async def pause(self) -> None:
        """Wait for the next turn, or for a reason to take it sooner."""
        if not await self._rest.over():
            return
        # Requests may report many failures a second. One turn serves them all.
        pace = AT_ONCE_PACE if self.backend.failures_in_row >= PROBES_ROW else DOUBT_PACE
        rests_s = self._turned_s + self._settings.interval_s * pace - self._now()
        if rests_s > 0.0:
            await asyncio.sleep(rests_s)

    def _next_look_s(self) -> float:
        return self._jittered(self._settings.interval_s * (1.0 if self._well else DOUBT_PACE))

    def look(self) -> None:
        """Take the next turn now: something is odd."""
        self._rest.call()

    @property
    def _well(self) -> bool:
        return self.backend.state in (State.READY, State.WARMING)

    @property
    def used(self) -> bool:
        """Whether it has requests, or had some since its last turn."""
        return self.backend.own.requests > 0 or self.backend.requests_total != self._requests_seen

    @property
    def suspected(self) -> bool:
        """Whether its last turn found it unhealthy: the next probe may hang, too."""
        return not self._well and bool(self.last_probes)

    def is_due(self) -> bool:
        """Whether a turn is due after an interval. Backends without requests may wait longer."""
        if self.used or self.backend.state is State.WARMING:
            return True
        now_s = self._now()
        if self._well:
            return now_s >= self._idle_until_s
        return now_s >= self._turned_s + self.pace.out_s(now_s)

    # Deep -------------------------------------------------------------------------------------

    def _deep_due(self, now_s: float) -> bool:
        backend, health = self.backend, self._health
        self._stall.look(now_s)
        if backend.state is State.EJECTED:
            return health.wants_deep(now_s) and not self._asleep(now_s)
        if backend.state is State.STARTING:
            return False
        if self._deep_asked or health.deep_in_doubt or self._stall.lasts_s(now_s) > STALL_S:
            return True
        if now_s < self._next_deep_s:
            return False
        if backend.progress != self._deep_progress:  # streams show the same at no cost
            self._deep_passed(now_s)
            return False
        return True

    async def _look_deep(self, ask: Asks) -> None:
        backend, pauses, asked = self.backend, self._pauses, self._deep_asked
        self._deep_asked = False
        outcome, progressed, excused, kind_fails = await self._deep.look(
            ask, self._peers, self._model(), self._settings
        )
        if self._pauses != pauses:
            self._rest.call()
            return
        now_s = self._now()
        if outcome.own:
            self.shortage.tell(outcome.reason, now_s)
            self._deep_asked = True
            return
        self._note("deep", outcome)
        told = self._deep.task is not Task.NONE and outcome.reason not in _NOT_ALLOWED
        self._unprobed = not told and kind_fails is not False
        slow = excused or (outcome.reason == "hung" and progressed)
        self._probe_agrees = not (outcome.passed or outcome.busy or slow)
        if asked and not self._probe_agrees and not self._unprobed:
            self._trust()
        back = backend.state is State.EJECTED and outcome.busy  # it works for others
        if outcome.passed or back or (backend.fit and progressed):
            self._deep_passed(now_s)
        elif outcome.certain:
            self._health.down(now_s)
        elif outcome.busy or excused:
            self._next_deep_s = now_s + self._jittered(self._settings.deep.interval_s)
        else:
            late = outcome.reason == "hung"
            self._health.deep_failed(now_s, may_eject=self._may_eject(), late=late)
        self._set_state(outcome.reason)
        if not outcome.passed or self._unprobed:
            self._judge_requests()
        elif backend.accusers.others < OTHERS_AGREE:
            # It generates: what one client met was its own doing. Failures of other clients stay,
            # or a probe between two of them would hide that many clients meet them.
            backend.accusers.acquit()

    def _deep_passed(self, now_s: float) -> None:
        self._health.deep_passed(now_s)
        self._deep.late.passed()
        self._deep_progress = self.backend.progress
        self._next_deep_s = now_s + self._jittered(self._settings.deep.interval_s)
        self._set_state("")

    def _asleep(self, now_s: float) -> bool:
        """Whether its own metrics say that it is asleep."""
        report = self.backend.report
        return report is not None and not report.awake and report.freshness(now_s) > 0

    def _model(self) -> str:
        models = self.backend.models or {}
        return next((model for model in self._models if model in models), next(iter(models), ""))

    def _jittered(self, time_s: float) -> float:
        return time_s * (1.0 + JITTER * (2.0 * self._rng.random() - 1.0))
