"""Tells the service levels what became of a request, once, at its end.

Times begin when the whole request is here: how slowly a client sends is its own affair. For the
same reason the end of an answer does not count where its client took it more slowly than it came.
Only what an engine works on counts: the rest is fast, and would hide what is slow.
"""

from math import inf

from penstock.balancing.fleet import UnknownModel
from penstock.balancing.lease import Lease
from penstock.balancing.slo.sample import Outcome, Sample, begins_within_s, outcome_of
from penstock.proxy.data.budgets import taken
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.data.request import Request
from penstock.proxy.data.service_classes import ASKED
from penstock.proxy.errors.error import PenstockError
from penstock.proxy.wire.heads import RequestHead


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
