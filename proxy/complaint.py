"""What a failed attempt or a refusal says of its backend, counted against whom it speaks."""

from typing import TYPE_CHECKING

from balancing.accusers import Cause
from balancing.lease import Lease
from proxy.dialects.dialect import NO_USAGE
from proxy.errors import AnswerBare, BackendError, BackendRefusing, OutOfTime, StreamOutOfTime

if TYPE_CHECKING:
    from proxy.plane import DataPlane
    from proxy.relay import Relay


def complain(plane: "DataPlane", lease: Lease, error: BackendError, now_s: float) -> Cause:
    """End the lease with this failure, tell who watches its backend; what explains it."""
    # What is asked of no engine accuses none: anybody may ask for what was stored of a failure.
    accuses = lease.ask.engine or not error.causable
    excused = not accuses or plane.was_asleep(lease.began_s, now_s)
    cause = Cause.BACKEND if error.causable else Cause.NO_REQUEST
    if isinstance(error, AnswerBare):
        cause = Cause.KIND  # it may have no token anywhere: a probe tells
    elif error.causable and error.suspicious and not excused:
        cause = plane.gate.cause(lease, now_s)
    if isinstance(error, (OutOfTime, StreamOutOfTime)):
        lease.cut_short(now_s)  # as if its client had left
    current = lease.fail(
        now_s,
        suspicious=error.suspicious and not excused,
        penal=error.penal and not excused,
        doubtful=error.doubtful,
        hint_s=error.hint_s,
        cause=cause,
    )
    if current and not excused:
        plane.failed(lease.backend, error.of_backend, cause)
    return cause


def refused(plane: "DataPlane", lease: Lease, relay: "Relay", now_s: float) -> None:
    """A 4xx was passed on, or what is no answer: a page, a redirect, not a single token.

    That is the client's own fault, or its wish, unless only this backend gives it.
    """
    if relay.status == 429:
        lease.turned_away(now_s, relay.hint_s)
    elif plane.gate.refused(lease, now_s, relay.status):
        plane.failed(lease.backend, BackendRefusing(), Cause.BACKEND)


def settle(plane: "DataPlane", lease: Lease, relay: "Relay", now_s: float) -> None:
    """End the lease of what was passed as it came; what was no answer teaches nothing."""
    if relay.served:
        usage = relay.usage or NO_USAGE
        lease.complete(now_s, usage.completion_tokens, usage.prompt_tokens)
        return
    if lease.ask.engine:
        refused(plane, lease, relay, now_s)
    lease.fail(now_s, suspicious=False, penal=False)
