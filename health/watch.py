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
from typing import Final, NamedTuple, Protocol

from balancing.accusers import Cause
from balancing.backend import AdminState, Backend, State
from balancing.engine_report import EngineReport
from balancing.slow_start import SlowStart
from conf.settings import HealthSettings
from health.late import Late
from health.machine import Health
from health.pace import Pace
from health.probes import KEY_REFUSED, Outcome
from health.rest import Rest
from health.shortage import Shortage
from health.tasks import Task, task_of

logger = logging.getLogger(__name__)

# HAProxy's docs: a few percent of spread keep checks of many backends apart; we
# also are several replicas, so more.
JITTER: Final = 0.2
# While a backend is in doubt, probes come this much sooner: a fall of 3 at 2 s
# then takes some 2.5 s instead of 6.
DOUBT_PACE: Final = 0.25
# So many failed requests in a row ask for a deep probe at once, and rest no longer between two:
# it decides whether the row is the backend's fault, five times a row's length before it is told.
PROBES_ROW: Final = 2
AT_ONCE_PACE: Final = 0.05
# How long it is told that several clients met refusals which the peers do not give.
REFUSED_S: Final = 30.0
# Of a row, what others than the client with the most of them must have met to be believed
# without a probe's word. While it warms up one is enough.
OTHERS_AGREE: Final = 2
# Requests in flight and no token for so long, beside what the oldest prompt takes at the
# measured rate: a deep probe comes at once. Engines prefill first come first served, so
# the prompts behind it buy no time; the rate, a lower bound, is patient enough.
STALL_S: Final = 2.0
PREFILL_S_MAX: Final = 60.0
# A backend that no deep probe can be made for (transcription) shows only by its requests
# whether it works; the longest file takes less.
UNPROBED_STALL_S: Final = 60.0


# What a server shows that has just been started and takes connections.
_LOADING: Final = frozenset({"loading", "timeout", "status_503"})
# A key that is missing: the probe was not taken, which says nothing.
_NOT_ALLOWED: Final = frozenset(f"status_{status}" for status in KEY_REFUSED)


class Asks(Protocol):
    """How a backend is asked; `probes.Prober` over HTTP."""

    async def live(self, timeout_s: float) -> Outcome: ...
    async def ready(self, timeout_s: float) -> Outcome: ...
    async def deep(
        self, model: str, task: Task | None, timeout_s: float
    ) -> tuple[Task | None, Outcome]: ...
    async def report(self, timeout_s: float, now_s: float) -> EngineReport | None: ...


@dataclass(slots=True)
class LastProbe:
    """How a level's last probe went, for people."""

    at_unix_s: float
    passed: bool
    reason: str


class Looked(NamedTuple):
    """What a deep look found: how the usual work fared, and what else went on."""

    outcome: Outcome
    progressed: bool
    excused: bool = False
    kind_fails: bool | None = None  # the one that requests failed at; None: that is not told


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
        self._late = Late(backend)
        self._rest = Rest(self._next_look_s, self.is_due)
        self._progress = backend.progress
        self._progress_at_s = now()
        self._deep_progress = backend.progress
        # Not all at once: the first one comes somewhere in the first interval's second half.
        self._next_deep_s = now() + settings.deep.interval_s * (0.5 + 0.5 * rng.random())
        self._deep_asked = False  # by failed requests
        self._probe_agrees = False  # the last deep probe failed as well
        self._unprobed = False  # no deep probe can tell
        self._refused_until_s = 0.0
        self._slept_s = 0.0  # in all, of the process
        self._turned_s = now()  # the end of the last turn
        self._idle_until_s = 0.0  # until then it need not be asked while it has no requests
        self._requests_seen = 0  # in all, at the last turn
        self.pace = Pace()  # of the fleet that it is in, as is the next
        self.shortage = Shortage()
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
        self._rest.call()

    def requests_failed(self, cause: Cause = Cause.BACKEND) -> None:
        """A request failed for a reason of the backend's own, or for `cause`.

        Two in a row ask for a deep probe at once: what one client met may be its own doing,
        and traffic goes elsewhere meanwhile, so it might be long until there are enough to tell.
        """
        if self.backend.failures_in_row >= PROBES_ROW or cause in (Cause.CLIENT, Cause.KIND):
            self._deep_asked = True
            self._rest.call()
        self._judge_requests()

    def _judge_requests(self) -> None:
        """Eject for a row of failed requests, if others than one client or a probe met it too."""
        backend, health = self.backend, self._health
        if not backend.failures_in_row:
            return
        needed = 1 if backend.state is State.WARMING else OTHERS_AGREE
        believed = backend.accusers.others >= needed or self._probe_agrees or self._unprobed
        health.requests_failed(
            self._now(), backend.failures_in_row, may_eject=believed and self._may_eject()
        )
        self._settle("failing")

    def resume(self) -> None:
        """Its maintenance is over. What was known of it is void: it may be another server now."""
        self._health = self._unknown()
        self._task = None
        self._probe_agrees = self._unprobed = False
        self._refused_until_s = 0.0
        self.backend.pardon()
        self._settle("loading")
        self._rest.call()

    def refused(self, *, key: bool) -> None:
        """It refused the pool's own `key`, which a probe tries too; or what its peers do not."""
        if not key:
            self._refused_until_s = self._now() + REFUSED_S
            self._health.refuse()
            self._settle("refusing")
        self._rest.call()

    def metrics_too_large(self) -> None:
        """Nobody reads them, which is told: it is not taken out for that."""
        if "metrics" not in self.last_probes:
            logger.warning("metrics are too large to be read name=%s", self.backend.name)
        self._note("metrics", Outcome("too_large"))

    def slept(self, time_s: float) -> None:
        """The process did not run for so long: no probe and no stream could be heard."""
        self._slept_s += time_s
        self._progress_at_s += time_s
        self._next_deep_s += time_s

    # Turns ------------------------------------------------------------------------------------

    async def turn(self, ask: Asks) -> None:
        """One look: live, ready, and deep when it is due."""
        if self.backend.admin_state is AdminState.MAINT:
            self._idle_until_s = 0.0
            return
        self._health.refusing = self._now() < self._refused_until_s
        timeout_s = self._settings.timeout_s
        progress, slept_s = self.backend.progress, self._slept_s
        outcome = await ask.live(timeout_s)
        self._note("live", outcome)
        if outcome.passed:
            outcome = await ask.ready(timeout_s)
            if outcome.models and self._models and not self._named(outcome.models):
                outcome = Outcome("no_models")
            self._note("ready", outcome)
        if self._slept_s != slept_s:
            self._rest.call()
            return
        now_s = self._now()
        self._count(outcome, now_s, streams=self.backend.progress != progress)
        self._settle("" if outcome.own else outcome.reason)
        if outcome.passed and self._deep_due(now_s):
            await self._look_deep(ask)
        slow_start = self.backend.slow_start
        if slow_start is not None and slow_start.over(self._now()):
            self._health.warmed()
            self._settle("")
        self._turned_s = self._now()
        self._requests_seen = self.backend.requests_total
        # Not all at once, though all began together.
        self._idle_until_s = self._turned_s + self.pace.idle_s * (0.5 + 0.5 * self._rng.random())

    def _count(self, outcome: Outcome, now_s: float, *, streams: bool) -> None:
        """Count how a live and a ready probe ended. `streams` progressed meanwhile."""
        if outcome.own:  # as if the turn had not been
            self.shortage.tell(outcome.reason, now_s)
        elif outcome.passed:
            self.backend.models, self.backend.contexts = outcome.models, outcome.contexts
            self._health.passed()
        elif outcome.certain:
            self._health.down(now_s)
        elif outcome.reason != "timeout" or not streams:
            # A timeout while streams progress is load.
            late = outcome.reason == "timeout"
            self._health.failed(now_s, may_eject=self._may_eject(), late=late)

    async def pause(self) -> None:
        """Wait for the next turn, or for a reason to take it sooner."""
        if not await self._rest.over():
            return
        # Requests may report many failures a second; one turn answers them all.
        pace = AT_ONCE_PACE if self.backend.failures_in_row >= PROBES_ROW else DOUBT_PACE
        rests_s = self._turned_s + self._settings.interval_s * pace - self._now()
        if rests_s > 0.0:
            await asyncio.sleep(rests_s)

    def _next_look_s(self) -> float:
        return self._jittered(self._settings.interval_s * (1.0 if self._well else DOUBT_PACE))

    def look(self) -> None:
        """Something is odd: take the next turn now."""
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
        """Whether its last turn found it not well: the next one may hang, too."""
        return not self._well and bool(self.last_probes)

    def is_due(self) -> bool:
        """Whether an interval is enough: one of many that has no requests is asked more rarely."""
        if self.used or self.backend.state is State.WARMING:
            return True
        now_s = self._now()
        if self._well:
            return now_s >= self._idle_until_s
        return now_s >= self._turned_s + self.pace.out_s(now_s)

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
        if self._deep_asked or health.deep_in_doubt or self._stalled_s(now_s) > STALL_S:
            return True
        if now_s < self._next_deep_s:
            return False
        if backend.progress != self._deep_progress:  # streams are a deep probe that costs nothing
            self._deep_passed(now_s)
            return False
        return True

    async def _look_deep(self, ask: Asks) -> None:
        backend, slept_s = self.backend, self._slept_s
        self._deep_asked = False
        outcome, progressed, excused, kind_fails = await self._ask_deep(ask)
        if self._slept_s != slept_s:
            self._rest.call()
            return
        now_s = self._now()
        if outcome.own:
            self.shortage.tell(outcome.reason, now_s)
            self._deep_asked = True
            return
        if self._task is Task.NONE and self._stalled_s(now_s) > UNPROBED_STALL_S:
            outcome = Outcome("hung")
        if kind_fails and (outcome.passed or outcome.busy):
            outcome, progressed = Outcome("failing"), False
        self._note("deep", outcome)
        told = self._task is not Task.NONE and outcome.reason not in _NOT_ALLOWED
        self._unprobed = not told and kind_fails is not False
        slow = excused or (outcome.reason == "hung" and progressed)
        self._probe_agrees = not (outcome.passed or outcome.busy or slow)
        back = backend.state is State.EJECTED and outcome.busy  # it works, for others
        if outcome.passed or back or (backend.fit and progressed):
            self._deep_passed(now_s)
        elif outcome.certain:
            self._health.down(now_s)
        elif outcome.busy or excused:
            self._next_deep_s = now_s + self._jittered(self._settings.deep.interval_s)
        else:
            late = outcome.reason == "hung"
            self._health.deep_failed(now_s, may_eject=self._may_eject(), late=late)
        self._settle(outcome.reason)
        if not outcome.passed or self._unprobed:
            self._judge_requests()
        elif backend.accusers.others < OTHERS_AGREE:
            # It generates: what one client met was its own doing. What another met stays, or
            # a probe between two failures would hide that many clients meet them.
            backend.accusers.acquit()

    async def _ask_deep(self, ask: Asks) -> Looked:
        """Ask for the kind of work that fails, where one does, and for the usual one."""
        backend, late = self.backend, self._late
        began_s, timeout_s, progress = self._now(), self._settings.deep.timeout_s, backend.progress
        report = None
        if late.may_come(timeout_s):
            report = await ask.report(self._settings.timeout_s, began_s)
        late.read(report, began_s)
        failing = await self._ask_failing(ask, timeout_s + self._left_s())
        if failing is not None and failing.own:
            return Looked(failing, progressed=False)
        if failing is not None and failing.passed:
            return Looked(failing, progressed=True, kind_fails=False)
        self._task, outcome = await ask.deep(self._model(), self._task, timeout_s + self._left_s())
        progressed, excused = backend.progress != progress, False
        if outcome.reason == "hung" and not progressed:
            if report is not None:
                report = await ask.report(self._settings.timeout_s, self._now())
                progressed = late.read(report, began_s) or backend.progress != progress
            excused = late.excused(began_s, self._now(), timeout_s)
        fails = failing is not None and not failing.busy
        if failing is not None and failing.reason == "hung":  # other work may have held it up
            fails = outcome.passed and not progressed
        return Looked(outcome, progressed, excused, True if fails else None)

    async def _ask_failing(self, ask: Asks, timeout_s: float) -> Outcome | None:
        """How a request of the kind that fails in a row fares, if the usual probe is of another.

        None where no peer serves that kind either: what fails everywhere accuses nobody.
        """
        backend = self.backend
        path = backend.accusers.path
        task = task_of(path)
        if backend.failures_in_row < PROBES_ROW or task is None or task is self._task:
            return None
        if not any(path in peer.served for peer in self._peers if peer is not backend):
            return None
        _, outcome = await ask.deep(self._model(), task, timeout_s)
        return outcome

    def _deep_passed(self, now_s: float) -> None:
        self._health.deep_passed(now_s)
        self._late.passed()
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

    def _left_s(self) -> float:
        """A probe waits behind the prompt that is being prefilled, for what is left of that."""
        return max(0.0, -self._stalled_s(self._now()))

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
        before, told = backend.state, backend.reason
        backend.state = health.state
        backend.doubted = health.doubted
        if health.state in (State.READY, State.WARMING):
            backend.reason = ""
        elif reason:
            loads = health.state is State.STARTING and reason in _LOADING
            backend.reason = "loading" if loads else reason
        if health.state is before:
            if before is State.STARTING and backend.reason not in (told, "loading"):
                logger.warning(
                    "backend cannot start to serve name=%s reason=%s", backend.name, backend.reason
                )
            return
        if {before, health.state} != {State.READY, State.SUSPECT}:  # a doubt ends no run
            backend.accusers.clear()
        if health.state is State.EJECTED:
            self._task = None  # another server may come back in its place
            if backend.reason == "unreachable":  # nobody listens: its caches are gone
                backend.restarted()
        if health.state is State.WARMING:
            backend.back_since_s = self._now()
            backend.penalty.forgive()
            backend.slow_start = SlowStart(backend.back_since_s, self._settings.slow_start_s)
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
