"""The attempts made for one request, and whether another backend may try after a failure.

A failed attempt or a refusal counts against its backend, or against whoever caused it.
"""

import logging
from collections.abc import Callable
from typing import Final

from penstock.balancing.backend import Backend, State
from penstock.balancing.fields import searches_beams
from penstock.balancing.gate import Gate
from penstock.balancing.lease import Lease
from penstock.balancing.outliers.crashing_requests import Suspect, died_of_it, is_leaving
from penstock.balancing.outliers.failures import BUSY_S
from penstock.balancing.outliers.penalties import Cause
from penstock.balancing.routes.decision import Target
from penstock.health.stall import hangs
from penstock.proxy.data.own_headers import origin
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.data.relay import Relay
from penstock.proxy.data.request import Request
from penstock.proxy.data.routing import able_fallback
from penstock.proxy.dialects.dialect import NO_USAGE
from penstock.proxy.errors.backend import (
    AnswerBare,
    BackendBusy,
    BackendError,
    BackendHung,
    BackendRefusing,
    EngineDead,
    InternalFault,
    NoPorts,
    NotHere,
    OutOfTime,
    StreamBroken,
    StreamOutOfClientTime,
    StreamOutOfTime,
)
from penstock.proxy.errors.client import ResponseNotFound
from penstock.proxy.errors.error import PenstockError
from penstock.proxy.errors.own import PoisonRequest

logger = logging.getLogger(__name__)

# The most attempts that may cost an engine work. Others are limited by the number of backends, or,
# where these have too much to do, by how long the request may wait.
ATTEMPTS_MAX: Final = 3
NO_BACKENDS: Final[frozenset[Backend]] = frozenset()


class Failover:
    """The attempts of one request. `reached`: how many may have cost an engine work.

    `reached_here`: how many of these in the pool that it is in now. Others are no retries there.
    """

    def __init__(self, plane: DataPlane, request: Request) -> None:
        self._plane = plane
        self._request = request
        self._failure: BackendError | None = None  # the last one; NoPorts only if there is no other
        self._suspect: Suspect | None = None  # set once an engine died with the request
        self._without = NO_BACKENDS  # those that do not hold the stored response
        self._failed: dict[Backend, tuple[float, int]] = {}  # when, and after how many restarts
        self.tried = NO_BACKENDS  # those that have failed it, and are not back since
        self.reached = self.reached_here = 0
        self.fallback: Target | None = None  # which its next attempt is for

    @property
    def retries(self) -> bool:
        """Whether its next attempt is a retry in the pool that it is in now."""
        return self.reached_here > 0 and self._request.endpoint.work.engine

    def begun(self, lease: Lease) -> None:
        self._request.record.attempts += 1
        if self._request.charge is not None:
            self._request.charge.lease = lease
        if self._suspect is not None:
            self._suspect.sent(lease.backend.name)

    def leaves(self, lease: Lease) -> bool:
        """Whether a request that waits leaves its backend, because probes found that this hangs.

        Only once: the engine may hang of the request. And only if another backend is in no doubt:
        when the network fails, all fall silent one after the other, and may answer yet.
        """
        if self.reached or lease.bound or not lease.sound:
            return False
        backend, ask = lease.backend, lease.ask
        if backend.state is not State.EJECTED or not hangs(backend):
            return False
        now_s = self._plane.now()
        return any(
            each.state is State.READY
            and each.fit
            and not each.is_closed(ask.client, now_s)
            and each.serves(ask.model)
            for pool in self._plane.fleet.pools
            if pool.name == backend.pool
            for each in pool.backends
            if each not in self.tried
        )

    def spared(self) -> None:
        """The request leaves its backend, and the engine there did not die."""
        if self._suspect is not None:
            self._suspect.spared()

    def failed(
        self, lease: Lease, error: BackendError, relay: Relay | None, now_s: float, *, resent: bool
    ) -> None:
        """Count a failed attempt. Raises the client's error if no other backend may try.

        `resent`: the request was sent twice in this attempt, first on a connection just closed.
        """
        self._failure = self._failure if isinstance(error, NoPorts) and self._failure else error
        expected = error.fatal and is_leaving(lease.backend)  # before the failure changes that
        cause = self.complain(lease, error, now_s)
        if isinstance(error, InternalFault) and relay is not None and relay.status == 500:
            self._request.kept = relay  # the answer, unless another backend has a better one
        before, self.reached = self.reached, self.reached + error.reached
        self.reached_here += error.reached
        if resent and error.reached:
            self.reached += 1
            self._spare_one(before)
            record = self._request.record
            record.attempts += 1
            self._request.answer.about = origin(self._plane, lease, self._request)
        if error.fatal and self._request.endpoint.work.engine and died_of_it(lease, now_s):
            self._died(lease, now_s, expected=expected, told=isinstance(error, EngineDead))
        if not self._may_go_on(lease, error, relay, cause, now_s):
            raise self._by_all()
        self.spared()
        # Who is busy is left alone by all. The request may have to wait for it.
        if not isinstance(error, BackendBusy) or not lease.ask.engine:
            self._failed |= {lease.backend: (now_s, lease.backend.restarts)}
            self.tried = frozenset(
                backend
                for backend, (at_s, restarts) in self._failed.items()
                if backend.back_since_s <= at_s and backend.restarts == restarts
            )

    def _spare_one(self, before: int) -> None:
        """Leave an attempt for a fall-back, where one sent twice has taken two at once."""
        able = able_fallback(self._plane, self._request.ask, self._request.way, "errors")
        if before < ATTEMPTS_MAX - 1 and able is not None:
            self.reached = min(self.reached, ATTEMPTS_MAX - 1)
            self._request.resends = False

    def complain(self, lease: Lease, error: BackendError, now_s: float) -> Cause:
        """Count a failure against its cause. Returns the cause."""
        plane = self._plane
        plane.metrics.attempted(self._request.times, error.reason)
        self._request.record.tries[-1].failed(error.reason, now_s)
        if isinstance(error, NotHere):
            self._without |= {lease.backend}
            plane.background.unknown(self._request.ask, lease.backend)
            return Cause.BACKEND
        if isinstance(error, StreamBroken) and not isinstance(error, StreamOutOfClientTime):
            plane.metrics.stream_failures.add(error.reason)
        asleep = plane.sleep.excuses(lease.began_s, now_s)
        counted, times = lease.backend.failures_total, self._request.times
        cause = complain(plane.gate, lease, error, now_s, plane.failed, asleep=asleep)
        hung = isinstance(error, BackendHung)  # the probes have counted it
        if times is not None and (hung or lease.backend.failures_total > counted):
            times.backend.lately.failed(error.reason, now_s)
        return cause

    def nobody(self, now_s: float) -> PenstockError:
        """Why no backend serves it. A response is unknown only if all who may hold it said so."""
        ask = self._request.ask
        if self._without:
            lost = self._plane.gate.is_lost(ask, self._without, now_s)
            refusals = self._plane.refusals
            return ResponseNotFound(ask.response_id) if lost else refusals.out_of_reach()
        return self._by_all() if self._failure else self._plane.refusals.no_backend()

    def _died(self, lease: Lease, now_s: float, *, expected: bool, told: bool) -> None:
        """Note that an engine died with the request. Raises PoisonRequest if it is the cause."""
        plane, request = self._plane, self._request
        if self._suspect is None:
            self._suspect = Suspect(hash((request.ask.tenant, request.mark)))
        pool = lease.backend.pool
        peers = [each for each in plane.fleet.backends if each.pool == pool]
        deaths = plane.deaths
        if self._suspect.died(lease, deaths, now_s, expected=expected, told=told, peers=peers):
            plane.poison.add(request.ask.tenant, request.mark, now_s)
            logger.warning("poison request request_id=%s", request.answer.request_id.decode())
            raise PoisonRequest

    def _may_go_on(
        self, lease: Lease, error: BackendError, relay: Relay | None, cause: Cause, now_s: float
    ) -> bool:
        """Whether another backend may try after this failure. Raises when the time is over."""
        request = self._request
        gate = self._plane.gate
        if not error.retryable or self.reached >= ATTEMPTS_MAX:
            return False
        if isinstance(error, AnswerBare) and searches_beams(request.body):
            request.kept = relay  # if the next backend answers the same, this is the answer
        if isinstance(error, NotHere):
            if not gate.may_search(request.ask, len(request.body), now_s):
                raise self.nobody(now_s)
            return True
        if lease.bound and not isinstance(error, BackendBusy):
            if error.reached:
                return False
            raise self._plane.refusals.out_of_reach()
        over = request.patience.over(now_s, started=request.answer.started)
        if over is not None:
            raise over
        works = error.reached and request.endpoint.work.engine
        if works and not gate.may_retry(lease, cause, now_s):
            return self._may_leave_pool(lease)
        if error.reached and self.reached == ATTEMPTS_MAX - 1:
            self.fallback = able_fallback(self._plane, request.ask, request.way, "errors")
        return True

    def _may_leave_pool(self, lease: Lease) -> bool:
        """Whether it may go to a fall-back in another pool, though its own allows no more retries.

        That costs an attempt a request, as its route says. It enters there as any of its client.
        """
        self._plane.metrics.attempts.add("over_budget")
        pool = lease.backend.pool
        request = self._request
        self.fallback = able_fallback(self._plane, request.ask, request.way, "errors", beside=pool)
        return self.fallback is not None

    def turned(self, *, elsewhere: bool) -> None:
        """It goes to a fall-back now. `elsewhere`: in another pool, where it is no retry."""
        self.fallback = None
        self._failed, self.tried = {}, NO_BACKENDS  # another model may do where one has failed
        if elsewhere:
            self.reached_here = 0

    def _by_all(self) -> PenstockError:
        error = self._failure
        assert error is not None
        if isinstance(error, NoPorts):  # for no backend: a limit of the proxy itself
            return self._plane.refusals.overloaded("descriptors")
        if isinstance(error, BackendBusy):
            return self._plane.refusals.full(error.busy_s or BUSY_S)
        return error


Told = Callable[[Backend, BackendError, Cause], None]  # tells the health monitor


def complain(
    gate: Gate, lease: Lease, error: BackendError, now_s: float, told: Told, *, asleep: bool = False
) -> Cause:
    """End the lease with a failure and tell the health monitor. Returns the cause.

    asleep: the process did not run meanwhile, so the failure is nobody's fault.
    """
    # A request without an engine accuses no engine: anybody may ask for a stored failed response.
    accuses = lease.ask.engine or not error.causable
    excused = not accuses or asleep or error.busy_s is not None
    cause = Cause.BACKEND if error.causable else Cause.NO_REQUEST
    bare = isinstance(error, AnswerBare) and not excused
    if bare:
        cause = came_bare(gate, lease, now_s, told)
    elif error.causable and error.suspicious and not excused:
        cause = gate.cause(lease, now_s)
    if isinstance(error, (OutOfTime, StreamOutOfTime)):
        lease.cut_short(now_s)  # as if the client had left
    current = lease.fail(
        now_s,
        suspicious=error.suspicious and not excused,
        penal=error.penal and not excused,
        doubtful=error.doubtful,
        busy_s=error.busy_s if lease.ask.engine else None,
        cause=cause,
        fatal=error.fatal,
    )
    if current and not excused:
        # An answer without a token may be right everywhere: a probe decides.
        told(lease.backend, error.of_backend, Cause.KIND if bare else cause)
    return cause


def came_bare(gate: Gate, lease: Lease, now_s: float, told: Told) -> Cause:
    """Count a stream without a token as a refusal, too. Returns the cause."""
    if lease.began_s < lease.backend.back_since_s:
        return Cause.KIND  # it says nothing about the backend since its return
    cause = gate.bare(lease, now_s)
    if gate.refused(lease, now_s, 200):
        told(lease.backend, BackendRefusing(), Cause.BACKEND)
    return cause


def conclude(
    gate: Gate, lease: Lease, relay: Relay, now_s: float, told: Told, *, bare: Relay | None
) -> None:
    """End the lease of an answer that was passed on. Learn nothing from one that is no answer.

    If the engine works on in the background, the lease goes on.

    bare: the answer without a token that another backend gave before.
    """
    if relay.served:
        usage = relay.usage or NO_USAGE
        if bare is not None and lease.first_token_s is None and not usage.completion_tokens:
            came_bare(gate, lease, now_s, told)
        if relay.goes_on:
            return
        lease.complete(now_s, usage.completion_tokens, usage.prompt_tokens)
        return
    # A 4xx, or a web page, a redirect, a stream without a token: the client's own fault or wish,
    # unless only this backend gives it.
    if lease.ask.engine and gate.refused(lease, now_s, relay.status):
        told(lease.backend, BackendRefusing(), Cause.BACKEND)
    lease.fail(now_s, suspicious=False, penal=False)
