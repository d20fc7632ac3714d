"""One backend's state, and what requests, scrapes and comparisons tell of it at once.

Nothing else writes a backend's `state`, `reason`, `doubted` and `slow_start`.
"""

import logging
from collections.abc import Callable, Sequence
from math import inf
from random import Random
from time import time
from typing import Final

from penstock.balancing.backend import Backend, State
from penstock.balancing.cold_start import LOADING
from penstock.balancing.outliers.penalties import Cause
from penstock.balancing.slow_start import SlowStart
from penstock.conf.health import HealthSettings
from penstock.health.deep import PROBES_ROW, DeepProbe
from penstock.health.machine import Health, ToReturn
from penstock.health.probes import LastProbe, Outcome
from penstock.health.stall import Stall

logger = logging.getLogger(__name__)

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


class Findings:
    """What is known of `backend`, which is one of the `peers` in its pool."""

    def __init__(
        self,
        backend: Backend,
        peers: Sequence[Backend],
        settings: HealthSettings,
        rng: Random,
        now: Callable[[], float],
    ) -> None:
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

    def _rouse(self) -> None:
        """Have the next turn taken soon."""

    def to_return(self) -> ToReturn | None:
        """What is missing for its return. None unless it is ejected, and may return by itself."""
        return self._health.to_return(self._now())

    # What requests and scrapes saw ----------------------------------------------------------

    def certain(self, reason: str) -> None:
        """It cannot serve: refused, draining or asleep. Eject it at once and probe it soon."""
        self._health.down(self._now())
        self._set_state(reason)
        self._rouse()

    def requests_failed(self, cause: Cause = Cause.BACKEND) -> None:
        """A request failed. `cause` says what may explain it.

        Two in a row ask for a deep probe at once, unless one passed lately. One client's may be its
        own doing, and traffic goes elsewhere meanwhile, so more might be long in coming.
        """
        asks = self.backend.failures_in_row >= PROBES_ROW or cause in (Cause.CLIENT, Cause.KIND)
        if asks and self._now() >= self._trusted_until_s:
            self._deep_asked = True
            self._rouse()
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
        self._rouse()

    def refused(self, *, key: bool) -> None:
        """It refused the pool's own `key`, which probes try too, or what other backends serve."""
        if not key:
            self._refused_until_s = self._now() + REFUSED_S
            self._health.refuse()
            self._set_state("refusing")
        self._rouse()

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
        self._rouse()

    def replaced(self) -> None:
        """Another engine is there, or may be. It is judged anew."""
        self._health.release()
        self.arrived()

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
