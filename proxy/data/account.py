"""Counts every request once, and logs it once if that is configured, however it ended.

Only figures need that, so it is done for many requests at once, at most COUNT_S later. A request
that is counted alone finds neither this code nor the counters in the processor's caches.

It also tells the service levels what became of a request. Times begin when the whole request is
here: how slowly a client sends is its own affair. For the same reason the end of an answer does not
count where its client took it more slowly than it came. Only what an engine works on counts: the
rest is fast, and would hide what is slow.

And it begins traces, and gives them to the exporter. Without tracing it only reads the trace's id,
for the access log.
"""

import asyncio
import logging
from datetime import UTC, datetime
from math import inf
from time import time, time_ns
from typing import Final

from penstock.balancing.ask import Ask
from penstock.balancing.budget import Charge
from penstock.balancing.fleet import UnknownModel
from penstock.balancing.lease import Lease, Reason
from penstock.balancing.slo.sample import Outcome, Sample, begins_within_s, outcome_of
from penstock.proxy.data.answer import Answer
from penstock.proxy.data.budgets import LEFT, taken
from penstock.proxy.data.calibration import believable
from penstock.proxy.data.client import Client
from penstock.proxy.data.event_relay import EventRelay
from penstock.proxy.data.own_headers import answer_to
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.data.relay import Relay
from penstock.proxy.data.request import Request
from penstock.proxy.data.service_classes import ASKED
from penstock.proxy.errors.error import PenstockError
from penstock.proxy.telemetry.access_log import METHODS, add_request, path_told
from penstock.proxy.telemetry.pool_metrics import PoolMetrics
from penstock.proxy.telemetry.recent import Kept
from penstock.proxy.telemetry.record import Record
from penstock.proxy.telemetry.usage import Used
from penstock.proxy.tracing.span import Finished
from penstock.proxy.tracing.trace import Trace, trace_id_of, without_context
from penstock.proxy.wire.client_address import party_of
from penstock.proxy.wire.heads import RequestHead

logger = logging.getLogger(__name__)

COUNT_S: Final = 0.1
# So many wait at most: counting them takes 0.3 ms.
UNCOUNTED_MAX: Final = 64


def count(plane: DataPlane, status: int) -> None:
    """Count a request that was not sent to a backend."""
    requests = plane.metrics.pools[""].requests
    requests["", status] = requests.get(("", status), 0) + 1


def refused(
    plane: DataPlane,
    head: RequestHead | None,
    answer: Answer,
    error: PenstockError,
    client: Client,
) -> None:
    """Count and log a request that has no exchange."""
    count(plane, error.status)
    if plane.slos.any:
        note_refused(plane, head, error)
    _end_early(plane, head, answer, error, client)


def left(
    plane: DataPlane, head: RequestHead | None, transport: asyncio.Transport, client: Client
) -> None:
    """Count and log a request whose client left before its body was whole."""
    plane.metrics.client_aborts.add("body")
    count(plane, LEFT)
    _end_early(plane, head, answer_to(plane, transport, head), None, client)


def ended(
    plane: DataPlane,
    request: Request,
    lease: Lease | None,
    relay: Relay | None,
    error: PenstockError | None,
) -> None:
    """Note how a request ended that has an exchange. `lease`, `relay`: those of its last attempt.

    Nothing changes its record from now on. It is counted and logged within COUNT_S.
    """
    record, answer, now_s = request.record, request.answer, plane.now()
    record.status = answer.status or LEFT
    record.error = error.code if error is not None else None
    record.whole = answer.finished
    record.ended_s = now_s
    record.flows(now_s)
    if lease is not None:
        record.tries[-1].first_token_s = lease.first_token_s or 0.0
    if relay is not None:
        record.streamed = isinstance(relay, EventRelay)
        if relay.over:  # its client may leave before the framing has ended
            record.tries[-1].status = relay.meant_status
        record.made_tokens, counts = relay.made_tokens, relay.counts
        if counts is not None and record.usage is None:
            record.usage = believable(counts, request.ask, lease, answer.body_bytes)
    uncounted = plane.uncounted
    if not uncounted:
        plane.loop.call_later(COUNT_S, count_all, plane)
    uncounted.append((request, lease, error))
    if len(uncounted) >= UNCOUNTED_MAX:
        count_all(plane)


def count_all(plane: DataPlane) -> None:
    """Count the requests that have ended. Whoever reads figures calls it first."""
    uncounted = plane.uncounted
    if not uncounted:
        return
    plane.uncounted = []
    for request, lease, error in uncounted:
        try:
            _count(plane, request, lease, error)
        except Exception:
            logger.exception("a request was not counted")


def _count(
    plane: DataPlane, request: Request, lease: Lease | None, error: PenstockError | None
) -> None:
    record = request.record
    pool = plane.metrics.of(record.pool)
    pool.request(record.backend, record.status, record.ended_s - record.began_s)
    _time(plane, pool, request)
    if record.sent_s:
        plane.metrics.overhead_s.observe(record.overhead_s)
    if lease is not None:
        _placed(plane, lease, request)
    if request.way is not None and request.way.draw is not None:
        plane.canaries.ended(request, lease)
    if plane.newcomers.by_backend:
        plane.newcomers.ended(request)
    if record.usage is not None:
        pool.prompt_tokens += record.usage.prompt_tokens
        pool.completion_tokens += record.usage.completion_tokens
        pool.cached_tokens += record.usage.cached_tokens or 0
    if plane.slos.any:
        note_ended(plane, request, lease, error)
    log, tenant, model = plane.access_log, request.ask.tenant, request.ask.model
    if model is not None and (lease is None or not lease.backend.lists(model)):
        model = None
    if lease is not None and tenant and not request.billed:
        _use(plane.metrics.usage.of(tenant, model), request.ask, record, lease)
    if log is not None:
        line = _line(
            plane,
            request.head,
            request.answer,
            request.peer,
            record.status,
            record.trace_id,
            record.ended_s,
        )
        add_request(line, record, model, stream=request.ask.stream)
        log.write(line)
    kept = kept_of(request, model)
    ask, head = request.ask, request.head
    _offer_trace(plane, request.trace, kept, head, request.answer, ask.max_tokens, ask.choices)
    plane.recent.add(kept)


def kept_of(request: Request, model: str | None) -> Kept:
    """A request as it is kept. `model`: its name if a backend lists it."""
    ask, tenant = request.ask, request.head.tenant
    owner = ask.client or tenant or _party(request.peer)
    request_id = request.answer.request_id
    return Kept(request.record, request_id, owner, tenant, model, stream=ask.stream)


def _end_early(
    plane: DataPlane,
    head: RequestHead | None,
    answer: Answer,
    error: PenstockError | None,
    client: Client,
) -> None:
    """Keep and log a request that has no exchange. All its time was its client's.

    With tenants, all who show no key are one owner: they may have many addresses.
    """
    now_s, peer = plane.now(), client.peer
    record = Record(client.began_s, 0.0, now_s)
    record.ended_s = now_s
    record.status = error.status if error is not None else LEFT
    record.error = error.code if error is not None else None
    tenant = head.tenant if head is not None else ""
    owner = tenant or ("" if plane.tenants.asks else _party(peer))
    kept = Kept(record, answer.request_id, owner, tenant, None, stream=False)
    _trace_refused(plane, head, answer, kept)
    plane.recent.add(kept)
    if plane.access_log is not None:
        count_all(plane)  # lines come in the order in which requests ended
        line = _line(plane, head, answer, peer, record.status, record.trace_id)
        line["duration_ms"] = record.ms(now_s)
        plane.access_log.write(line | {"error": error.code} if error is not None else line)


def _party(peer: bytes) -> str:
    return party_of(peer.decode("ascii"))


def _time(plane: DataPlane, pool: PoolMetrics, request: Request) -> None:
    record, times = request.record, request.times
    first_s = record.first_token_s if record.streamed else 0.0
    if times is not None:
        times.duration_s.observe(record.ended_s - record.began_s)
        if first_s:
            times.ttft_s.observe(first_s - record.began_s)
            pool.first_token(request.ask.prompt_tokens, first_s - record.began_s)
    # After a failure it lost time by that.
    if first_s > record.received_s and record.predicted_s and len(record.tries) == 1:
        ratio = record.predicted_s / (first_s - record.received_s)
        plane.metrics.predicted_ratio.observe(ratio)


def _use(used: Used, ask: Ask, record: Record, lease: Lease) -> None:
    """Count what its tenant used: by the backend's counts, else by what we saw."""
    usage, (requests, prompt, completion) = record.usage, taken(ask, record, lease)
    cached = 0
    if usage is not None and ask.engine:
        prompt, cached = usage.prompt_tokens, usage.cached_tokens or 0
    used.add(Used(requests, prompt, cached, completion))


def settle(plane: DataPlane, request: Request, charge: Charge, lease: Lease | None) -> None:
    """Settle what its tenant was charged by what it took, also after an exception.

    What goes on in the background is settled when that is over.
    """
    if not request.billed:
        requests, prompt, completion = taken(request.ask, request.record, lease)
        if request.ask.first_pool and lease is not None and request.record.status < 500:
            requests = 1  # nobody can tell what it took
        charge.settle(requests, prompt + completion, plane.now())


def _placed(plane: DataPlane, lease: Lease, request: Request) -> None:
    """Count why its backend was chosen, and whether that was the one of the session, or of the
    stored response. Also its route, and whether something was cut from it."""
    record, times, way = request.record, request.times, request.way
    if way is not None:
        model = lease.ask.model
        other = f"/{model}" if model != way.asked else ""
        plane.metrics.route_requests.add(record.route, f"{lease.backend.pool}{other}")
    if record.degraded:
        for each in record.degraded.split(", "):
            plane.metrics.degraded.add(each.partition("=")[0])
    if times is not None:
        routed = times.backend.routed
        routed[lease.reason] = routed.get(lease.reason, 0) + 1
    if lease.reason is Reason.AFFINITY:
        plane.metrics.affinity.add("hit")
    elif lease.reason is Reason.SPILL:
        plane.metrics.affinity.add("spill")
    elif lease.backend.pool in plane.session_pools:
        plane.metrics.affinity.add("miss")


def _line(
    plane: DataPlane,
    head: RequestHead | None,
    answer: Answer,
    peer: bytes,
    status: int,
    trace_id: str,
    ended_s: float | None = None,
) -> dict[str, object]:
    """The fields that every access line begins with. `ended_s`: None if it ends now.

    Of a client's text only its request id is told. `time`: in seconds since 1970.
    """
    age_s = plane.now() - ended_s if ended_s is not None else 0.0
    at_s = int((time() - age_s) * 1000) / 1000
    path = path_told(head.path, listed=plane.paths.lists(head.path)) if head is not None else None
    return {
        "time": at_s,
        "at": datetime.fromtimestamp(at_s, UTC),
        "request_id": answer.request_id.decode("ascii"),
        "trace_id": trace_id or None,
        "client": peer.decode("ascii"),
        "method": METHODS.get(answer.method),
        "path": path,
        "tenant": (head.tenant or None) if head is not None else None,
        "status": status,
        "bytes": answer.body_bytes,
    }


def note_ended(
    plane: DataPlane, request: Request, lease: Lease | None, error: PenstockError | None
) -> None:
    """A request has ended that has an exchange. `lease`: that of its last attempt."""
    record, ask = request.record, request.ask
    if not request.endpoint.work.engine:
        return
    reason = getattr(error, "reason", None)
    outcome = outcome_of(record.status, record.error, reason, whole=record.whole)
    first_s, elapsed_s = record.first_token_s, record.ended_s - record.received_s
    streamed = record.streamed and first_s > 0.0
    itl_s = e2e_s = None
    if not record.held_up:
        if streamed:
            tokens = taken(ask, record, lease)[2] / max(1, ask.prompts * ask.choices)
            itl_s = (record.ended_s - first_s) / (tokens - 1.0) if tokens >= 2.0 else None
        e2e_s = elapsed_s if outcome is Outcome.SERVED else None
    pool = _pool_of(plane, request)
    vain_s = None
    if not first_s and outcome is Outcome.LEFT:
        due_s, slos, came_s = begins_within_s(ask), plane.slos, record.received_s
        answered_s = _answered_s(plane, pool)
        late = elapsed_s > max(due_s, slos.patience_s) and answered_s <= came_s
        if late and slos.abandoned.counts(pool, ask.client, came_s, record.ended_s, answered_s):
            vain_s = due_s
    sample = Sample(
        outcome,
        elapsed_s if not record.held_up else 0.0,
        streams=record.streamed or ask.stream,
        ttft_s=first_s - record.received_s if streamed else None,
        itl_s=itl_s,
        e2e_s=e2e_s,
        vain_s=vain_s,
    )
    plane.slos.add(sample, pool, _class_of(plane, request.head, ask.service_tier))


def note_refused(plane: DataPlane, head: RequestHead | None, error: PenstockError) -> None:
    """A request was refused before its body was whole. It counts if that was for load.

    Where there are tenants, strangers are told so first: they use up no error budget. Its pool
    stands in its body, so it is known only if there is one.
    """
    if head is None:
        return
    endpoint = plane.paths.find(head.method, head.path)
    if endpoint is None or not endpoint.work.engine:
        return
    outcome = outcome_of(error.status, error.code, getattr(error, "reason", None), whole=True)
    if outcome in (Outcome.SHED, Outcome.FAILED):
        pools = plane.fleet.pools
        pool = pools[0].name if len(pools) == 1 else ""
        plane.slos.add(Sample(outcome, 0.0), pool, _class_of(plane, head, None))


def _answered_s(plane: DataPlane, name: str) -> float:
    """When anybody's answer began last in a pool. inf if there is no such pool."""
    for pool in plane.fleet.pools:
        if pool.name == name:
            return max([each.answered_s for each in pool.backends], default=-inf)
    return inf


def _pool_of(plane: DataPlane, request: Request) -> str:
    """The pool that served it, or would have."""
    if request.record.pool:
        return request.record.pool
    try:
        return plane.fleet.resolve(request.ask)[0].name
    except UnknownModel:
        return ""


def _class_of(plane: DataPlane, head: RequestHead, tier: str | None) -> str:
    classes = plane.classes
    return classes.names[classes.rank_of(head.tenant, head.get(ASKED), tier)]


def begin_trace(plane: DataPlane, request: Request, party: str) -> None:
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


def _trace_refused(plane: DataPlane, head: RequestHead | None, answer: Answer, kept: Kept) -> None:
    """A request is over that has no exchange. `head`: None if it could not be read."""
    tracer, record = plane.tracer, kept.record
    if head is None:
        return
    if tracer is None:
        record.trace_id = trace_id_of(head.headers)
        return
    known = bool(head.tenant) or not plane.tenants.asks
    trace = tracer.begin(head.headers, kept.owner, record.ended_s, known=known)
    record.trace_id = trace.trace_id.decode("ascii")
    _offer_trace(plane, trace, kept, head, answer, None, 1)


def _offer_trace(
    plane: DataPlane,
    trace: Trace | None,
    kept: Kept,
    head: RequestHead,
    answer: Answer,
    max_tokens: int | None,
    choices: int,
) -> None:
    """Give a sampled trace to the exporter. Call it before the request is kept as a recent one."""
    if plane.tracer is None or trace is None or not trace.sampled:
        return
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
    plane.tracer.offer(finished)
