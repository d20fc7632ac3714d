"""Counts a failed attempt or a refusal against its backend, or against whoever caused it."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.balancing.backend import Backend
from penstock.balancing.gate import Gate
from penstock.balancing.lease import Lease
from penstock.balancing.outliers.penalties import Cause
from penstock.proxy.dialects.dialect import NO_USAGE
from penstock.proxy.errors.backend import (
    AnswerBare,
    BackendError,
    BackendRefusing,
    OutOfTime,
    StreamOutOfTime,
)

if TYPE_CHECKING:
    from penstock.proxy.data.relay import Relay

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


def refused(gate: Gate, lease: Lease, relay: "Relay", now_s: float, told: Told) -> None:
    """Count a 4xx, or an answer that is none: a web page, a redirect, a stream without a token.

    It is the client's own fault or wish, unless only this backend gives it.
    """
    if gate.refused(lease, now_s, relay.status):
        told(lease.backend, BackendRefusing(), Cause.BACKEND)


def conclude(
    gate: Gate, lease: Lease, relay: "Relay", now_s: float, told: Told, *, bare: "Relay | None"
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
    if lease.ask.engine:
        refused(gate, lease, relay, now_s, told)
    lease.fail(now_s, suspicious=False, penal=False)
