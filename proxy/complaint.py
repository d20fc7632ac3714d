"""What a failed attempt or a refusal says of its backend, counted against whom it speaks."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from balancing.accusers import Cause
from balancing.backend import Backend
from balancing.gate import Gate
from balancing.lease import Lease
from proxy.dialects.dialect import NO_USAGE
from proxy.errors import AnswerBare, BackendError, BackendRefusing, OutOfTime, StreamOutOfTime

if TYPE_CHECKING:
    from proxy.relay import Relay

Told = Callable[[Backend, BackendError, Cause], None]  # who watches the backends hears it


def complain(
    gate: Gate, lease: Lease, error: BackendError, now_s: float, told: Told, *, asleep: bool = False
) -> Cause:
    """End the lease with this failure, tell who watches its backend; what explains it.

    asleep: whether the process did not run meanwhile; then nobody is to be blamed.
    """
    # What is asked of no engine accuses none: anybody may ask for what was stored of a failure.
    accuses = lease.ask.engine or not error.causable
    excused = not accuses or asleep
    cause = Cause.BACKEND if error.causable else Cause.NO_REQUEST
    if isinstance(error, AnswerBare):
        cause = Cause.KIND  # it may have no token anywhere: a probe tells
    elif error.causable and error.suspicious and not excused:
        cause = gate.cause(lease, now_s)
    if isinstance(error, (OutOfTime, StreamOutOfTime)):
        lease.cut_short(now_s)  # as if its client had left
    current = lease.fail(
        now_s,
        suspicious=error.suspicious and not excused,
        penal=error.penal and not excused,
        doubtful=error.doubtful,
        hint_s=error.hint_s,
        cause=cause,
        fatal=error.fatal,
    )
    if current and not excused:
        told(lease.backend, error.of_backend, cause)
    return cause


def refused(gate: Gate, lease: Lease, relay: "Relay", now_s: float, told: Told) -> None:
    """A 4xx was passed on, or what is no answer: a page, a redirect, not a single token.

    That is the client's own fault, or its wish, unless only this backend gives it.
    """
    if relay.status == 429:
        lease.turned_away(now_s, relay.hint_s)
    elif gate.refused(lease, now_s, relay.status):
        told(lease.backend, BackendRefusing(), Cause.BACKEND)


def settle(gate: Gate, lease: Lease, relay: "Relay", now_s: float, told: Told) -> None:
    """End the lease of what was passed as it came; what was no answer teaches nothing."""
    if relay.served:
        usage = relay.usage or NO_USAGE
        lease.complete(now_s, usage.completion_tokens, usage.prompt_tokens)
        return
    if lease.ask.engine:
        refused(gate, lease, relay, now_s, told)
    lease.fail(now_s, suspicious=False, penal=False)
