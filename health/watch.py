"""The watch over one backend: what shows how it is, and the only writer of its state.

What requests, scrapes and comparisons tell comes in at once. Probes come in turns, more often while
the backend is in doubt. Nothing else writes a backend's `state`, `reason`, `doubted` and
`slow_start`.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from math import inf
from random import Random
from time import monotonic, time
from typing import Final

from penstock.balancing.backend import AdminState, Backend, State
from penstock.balancing.outliers.penalties import Cause
from penstock.balancing.starts import LOADING, SlowStart
from penstock.conf.health import HealthSettings
from penstock.health.engine import Engine
from penstock.health.machine import Health, ToReturn
from penstock.health.pace import Pace, Rest
from penstock.health.probes import KEY_REFUSED, LastProbe, Outcome, Prober, Shortage, Task
from penstock.health.stall import PROBES_ROW, STALL_S, DeepProbe, Stall

logger = logging.getLogger(__name__)

# HAProxy's documentation: a spread of a few percent keeps the checks of many backends apart. There
# may also be several replicas of this proxy, so the spread is larger.
JITTER: Final = 0.2
# While a backend is in doubt, its probes come this much sooner. A fall of 3 at 2 s then takes
# some 2.5 s instead of 6.
DOUBT_PACE: Final = 0.25
AT_ONCE_PACE: Final = 0.05
# The pool's key is missing: the probe was refused, which says nothing.
_NOT_ALLOWED: Final = frozenset(f"status_{status}" for status in KEY_REFUSED)
# For how long several clients' refusals, which other backends do not give, are remembered.
REFUSED_S: Final = 30.0
# A run of failures is believed without a probe if clients other than its loudest one met this many
# of them. While the backend warms up one is enough.
OTHERS_AGREE: Final = 2
# Where no probe can tell and streams are open, one client's failures are believed only after this
# time, and only if no stream had a token since the last of them.
ALONE_S: Final = 1.0

# After a deep probe that did not confirm them, failures of requests raise no suspicion for this
# time. It doubles with each such probe, up to the interval of deep probes.
TRUST_S: Final = 1.0

# Reasons of a backend that is starting as it should.
_PATIENT: Final = frozenset({"unprobed", "loading"})


def _nobody(backend: Backend) -> None:
    """The default when nobody judges new backends."""


class Watch:
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
        self.backend = backend
        self._peers = peers
        self._settings = settings
        self._rng = rng
        self._now = now
        self._health = self._unknown()
        self._stall = Stall(backend, now())
        self._deep = DeepProbe(backend, self._stall, now)
        self._deep_asked = False  # failed requests ask for a deep probe
        self._probe_agrees = False  # the last deep probe failed, too
        self._unprobed = False  # no deep probe can tell whether it works
        self._refused_until_s = 0.0
        self._trust_s, self._trusted_until_s = TRUST_S, -inf
        self.last_probes: dict[str, LastProbe] = {}
        self.is_new: Callable[[Backend], None] = _nobody  # told when it is another engine
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

    def look(self) -> None:
        """Take the next turn now: something is odd."""
        self._rest.call()

    def to_return(self) -> ToReturn | None:
        """What is missing for its return. None unless it is ejected, and may return by itself."""
        return self._health.to_return(self._now())

    # What requests and scrapes saw ----------------------------------------------------------

    def certain(self, reason: str) -> None:
        """It cannot serve: refused, draining or asleep. Eject it at once and probe it soon."""
        self._health.down(self._now())
        self._set_state(reason)
        self.look()

    def requests_failed(self, cause: Cause = Cause.BACKEND) -> None:
        """A request failed. `cause` says what may explain it.

        Two in a row ask for a deep probe at once, unless one passed lately. One client's may be its
        own doing, and traffic goes elsewhere meanwhile, so more might be long in coming.
        """
        asks = self.backend.failures_in_row >= PROBES_ROW or cause in (Cause.CLIENT, Cause.KIND)
        if asks and self._now() >= self._trusted_until_s:
            self._deep_asked = True
            self.look()
        self._judge_requests()

    def _judge_requests(self) -> None:
        """Eject after a run of failed requests that other clients or a probe confirm."""
        backend, health = self.backend, self._health
        if not backend.failures_in_row:
            return
        needed = 1 if backend.state is State.WARMING else OTHERS_AGREE
        # Where no probe can tell, one client is believed unless streams go on meanwhile.
        works = backend.own.streams > 0 and backend.progress != backend.progress_at_failure
        long = not backend.own.streams or self._now() - backend.failing_since_s >= ALONE_S
        alone = self._unprobed and long and not works
        believed = backend.accusers.others >= needed or self._probe_agrees or alone
        may_eject = believed and self._may_eject()
        if may_eject or self._now() >= self._trusted_until_s:
            health.requests_failed(self._now(), backend.failures_in_row, may_eject=may_eject)
            self._set_state("failing")

    def _trust(self) -> None:
        """Requests asked for a deep probe, and it did not confirm that they fail by the backend."""
        now_s, most_s = self._now(), self._settings.deep.interval_s
        again = now_s < self._trusted_until_s + most_s
        self._trust_s = min(2.0 * self._trust_s if again else TRUST_S, most_s)
        self._trusted_until_s = now_s + self._trust_s

    def resume(self) -> None:
        """Its maintenance is over. Forget all about it: it may be another server now."""
        held, self._health = self._health.held, self._unknown()
        if held:
            self.replaced()
        self._deep.task = None
        self._probe_agrees = self._unprobed = False
        self._refused_until_s = 0.0
        self.backend.pardon()
        self._set_state("unprobed")
        self.look()

    def refused(self, *, key: bool) -> None:
        """It refused the pool's own `key`, which probes try too, or what other backends serve."""
        if not key:
            self._refused_until_s = self._now() + REFUSED_S
            self._health.refuse()
            self._set_state("refusing")
        self.look()

    def metrics_too_large(self) -> None:
        """Log once that its metrics are ignored. Its state does not change."""
        if "metrics" not in self.last_probes:
            logger.warning("metrics are too large to be read name=%s", self.backend.name)
        self._note("metrics", Outcome("too_large"))

    def metrics_read(self) -> None:
        """Its metrics are of a readable size."""
        self.last_probes.pop("metrics", None)

    # What comparisons with its peers show ---------------------------------------------------

    def arrived(self) -> None:
        """It was added to a running pool: it begins slowly, and is judged beside its peers."""
        self._health.new = True
        self.is_new(self.backend)

    def worse(self, why: str) -> bool:
        """It is shown to be worse than its peers: take it out until an operator wants it back, or
        until another engine is there. Returns False where the pool cannot spare it now."""
        if not self._health.take_out(self._now(), may_eject=self._may_eject()):
            return False
        self._set_state("worse", why)
        return True

    def accepted(self) -> None:
        """An operator wants it back, worse or not."""
        self._health.release()
        self.look()

    def replaced(self) -> None:
        """Another engine is there, or may be. It is judged anew."""
        self._health.release()
        self.arrived()

    # Turns ------------------------------------------------------------------------------------

    async def turn(self, ask: Prober) -> None:
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
            self.look()
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

    async def _look_at_engine(self, ask: Prober, ready: Outcome) -> None:
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

    @property
    def _well(self) -> bool:
        return self.backend.state in (State.READY, State.WARMING)

    @property
    def used(self) -> bool:
        """Whether it has requests, or had some since its last turn."""
        return self.backend.own.requests > 0 or self.backend.requests_total != self._requests_seen

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

    async def _look_deep(self, ask: Prober) -> None:
        backend, pauses, asked = self.backend, self._pauses, self._deep_asked
        self._deep_asked = False
        outcome, progressed, excused = await self._deep.look(ask, self._model(), self._settings)
        if self._pauses != pauses:
            self.look()
            return
        now_s = self._now()
        if outcome.own:
            self.shortage.tell(outcome.reason, now_s)
            self._deep_asked = True
            return
        self._note("deep", outcome)
        told = self._deep.task is not Task.NONE and outcome.reason not in _NOT_ALLOWED
        self._unprobed = not told
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

    # State ------------------------------------------------------------------------------------

    def _unknown(self) -> Health:
        settings = self._settings
        return Health(
            fall=settings.fall, rise=settings.rise, deep_fall=settings.deep.fall, rng=self._rng
        )

    def _may_eject(self) -> bool:
        """Whether the pool can spare it: never the last backend, nor more than half of them."""
        others = [peer for peer in self._peers if peer is not self.backend]
        out = sum(peer.state is State.EJECTED for peer in others)
        return any(peer.fit for peer in others) and 2 * (out + 1) <= len(self._peers)

    def _set_state(self, reason: str, why: str = "") -> None:
        """Set the backend's state by its health, and log a change. `why`: more on the reason."""
        backend, health = self.backend, self._health
        if health.held and health.certain and reason == "unreachable":  # that server is gone
            backend.restarted()
            self.replaced()
        elif health.held:
            reason = "worse"
        before, told = backend.state, backend.reason
        backend.state = health.state
        backend.doubted = health.doubted
        if health.state in (State.READY, State.WARMING):
            backend.reason = ""
        elif reason:
            loads = health.state is State.STARTING and reason in LOADING
            backend.reason = "loading" if loads else reason
        if health.state is before:
            if before is State.STARTING and backend.reason not in {told, *_PATIENT}:
                logger.warning(
                    "backend not ready yet name=%s reason=%s", backend.name, backend.reason
                )
            return
        self._entered(before)
        logger.log(
            logging.WARNING if health.state is State.EJECTED else logging.INFO,
            "backend %s name=%s was=%s reason=%s%s",
            health.state,
            backend.name,
            before,
            backend.reason or "-",
            f" why={why}" if why else "",
        )

    def _entered(self, before: State) -> None:
        """Its state is another one than before."""
        backend, state = self.backend, self._health.state
        if {before, state} != {State.READY, State.SUSPECT}:  # a doubt does not end a run
            backend.accusers.clear()
            self._trusted_until_s = -inf
        if state is State.EJECTED:
            self._deep.task = None  # another server may come back in its place
            if backend.reason == "unreachable":  # nobody listens: its cache is gone
                backend.restarted()
        if state is State.WARMING:
            backend.back_since_s = self._now()
            backend.penalty.forgive()
            backend.slow_start = SlowStart(backend.back_since_s, self._settings.slow_start_s)
        else:
            backend.slow_start = None

    def _note(self, level: str, outcome: Outcome) -> None:
        self.last_probes[level] = LastProbe(time(), outcome.passed, outcome.reason)
