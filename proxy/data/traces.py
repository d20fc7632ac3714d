"""The traces of requests: begun with them, and given to the exporter at their end.

Without tracing nothing is done but to read the trace's id, for the access log.
"""

from time import time_ns

from penstock.proxy.data.answer import Answer
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.data.request import Request
from penstock.proxy.telemetry.access_log import METHODS, path_told
from penstock.proxy.telemetry.recent import Kept
from penstock.proxy.tracing.context import trace_id_of, without_context
from penstock.proxy.tracing.span import Finished
from penstock.proxy.tracing.trace import Trace, Tracer
from penstock.proxy.wire.heads import RequestHead


def begin(plane: DataPlane, request: Request, party: str) -> None:
    """Begin the request's trace, or go on with its client's. `party`: who the client is."""
    head, record, tracer = request.head, request.record, plane.tracer
    if tracer is None:
        record.trace_id = trace_id_of(head.headers)
        return
    client = head.tenant or party
    trace = request.trace = tracer.begin(head.headers, client, record.received_s)
    record.trace_id = trace.trace_id.decode("ascii")
    if trace.given:  # the backend gets ours
        head.headers = without_context(head.headers)


def ended(plane: DataPlane, request: Request, kept: Kept) -> None:
    """The request is over. Call it before it is kept among the recent ones."""
    trace, tracer, ask = request.trace, plane.tracer, request.ask
    if trace is None or tracer is None or not trace.sampled:
        return
    _offer(plane, tracer, trace, kept, request.head, request.answer, ask.max_tokens, ask.choices)


def refused(plane: DataPlane, head: RequestHead | None, answer: Answer, kept: Kept) -> None:
    """A request is over that has no exchange. `head`: None if it could not be read."""
    tracer, record = plane.tracer, kept.record
    if head is None:
        return
    if tracer is None:
        record.trace_id = trace_id_of(head.headers)
        return
    known = bool(head.tenant) or not plane.tenants
    trace = tracer.begin(head.headers, kept.owner, record.ended_s, known=known)
    record.trace_id = trace.trace_id.decode("ascii")
    if trace.sampled:
        _offer(plane, tracer, trace, kept, head, answer, None, 1)


def _offer(
    plane: DataPlane,
    tracer: Tracer,
    trace: Trace,
    kept: Kept,
    head: RequestHead,
    answer: Answer,
    max_tokens: int | None,
    choices: int,
) -> None:
    finished = Finished(
        kept,
        trace.trace_id,
        trace.span_id,
        trace.parent_id,
        trace.state,
        METHODS.get(answer.method, "_OTHER"),
        path_told(head.path, listed=plane.paths.lists(head.path)) or "",
        "http" if plane.listen.tls is None else "https",
        time_ns() - int(1e9 * (plane.now() - kept.record.ended_s)),
        max_tokens or 0,
        choices,
    )
    tracer.offer(finished)
