"""What admission would do with a request: a dry run, by the rules that it decides by.

Nothing is reserved, counted or learnt, and no name that comes by it is kept.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil
from typing import NamedTuple

from penstock.balancing.admission.pool_queue import PoolQueue
from penstock.balancing.admission.queued_request import (
    QueuedRequest,
    TooLate,
    WaitReason,
)
from penstock.balancing.admission.ttft import SHARE
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.gate import Look


class Fate(StrEnum):
    """What becomes of a request that comes now."""

    AT_ONCE = "at_once"
    WAIT = "wait"
    REFUSE = "refuse"


class Ahead(NamedTuple):
    """Requests of one class that go first. `tenants`: of how many tenants or client queues."""

    rank: int
    requests: int
    tokens: int
    tenants: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """A dry run. `backend`: where it goes, or would go if that had room.

    `reason`: what it waits for. `predicted_s`: until its first token. `allowed_s`: it is refused if
    `predicted_s`, less a part of its own prefill, is more. If it waits for a backend, or for one
    that refuses for load, the longest such wait.
    """

    fate: Fate
    backend: Backend | None
    reason: WaitReason | None = None
    ahead: list[Ahead] = field(default_factory=list)
    predicted_s: float = 0.0
    allowed_s: float = 0.0
    refused: TooLate | None = None


def forecast(pool: PoolQueue, request: QueuedRequest, look: Look, now_s: float) -> Forecast:
    """The dry run of a dry request before one pool."""
    reason = pool.shortage(look.chosen, request, look.ask, now_s)
    refused: TooLate | None = None
    if not pool.queue.waiting or not look.ask.engine:
        if reason is None:
            return Forecast(Fate.AT_ONCE, look.chosen)
        # It is looked at in the same turn, and may go elsewhere.
        found = pool.find(request, look, now_s)
        if isinstance(found, Backend):
            return Forecast(Fate.AT_ONCE, found)
        refused = found
    refused = pool.wait(request, look, now_s) or refused
    seconds = refused.predicted_s if refused is not None else request.predicted_s
    fate = Fate.WAIT if refused is None else Fate.REFUSE
    ahead, allowed_s = ahead_of(pool, request), SHARE * request.deadline_s
    if reason is None:  # what goes first may wait for a backend that refuses it for load
        reason = WaitReason.BUSY if look.chosen.left_alone.until_s > now_s else WaitReason.TURN
    if reason is WaitReason.BUSY:  # nobody knows when it takes requests again
        allowed_s = request.deadline_s
    return Forecast(fate, look.chosen, reason, ahead, seconds, allowed_s, refused)


def forecast_parked(
    pool: PoolQueue, request: QueuedRequest, longest_s: float, now_s: float
) -> Forecast:
    """The same for one that no backend can serve now. `longest_s`: how long such requests wait."""
    refused = pool.park(request, now_s)
    fate = Fate.WAIT if refused is None else Fate.REFUSE
    seconds = refused.predicted_s if refused is not None else 0.0
    ahead = ahead_of(pool, request)
    return Forecast(fate, None, WaitReason.BACKEND, ahead, seconds, longest_s, refused)


def ahead_of(pool: PoolQueue, request: QueuedRequest) -> list[Ahead]:
    """What goes before a request that comes now. Where a part of a tenant's queue does, the number
    of its requests is estimated by its tokens."""
    found: dict[int, Ahead] = {}
    tokens = request.wait.tokens if request.wait is not None else request.ask.prompt_tokens
    assert request.tenant is not None
    for tenant, rank, before in pool.queue.ahead(request.tenant, request.rank, tokens):
        if before > 0.0:
            share = min(1.0, before / tenant.queued_tokens[rank])
            so_far = found.get(rank, Ahead(rank, 0, 0, 0))
            found[rank] = Ahead(
                rank,
                so_far.requests + ceil(len(pool.queue.backlogs[rank][tenant]) * share),
                so_far.tokens + round(before),
                so_far.tenants + 1,
            )
    return [found[rank] for rank in sorted(found)]


def dry_copy(request: QueuedRequest, ask: Ask, since_s: float) -> QueuedRequest:
    """A dry request like one that waits, with this `ask`, as if it came at `since_s`."""
    return QueuedRequest(
        ask,
        since_s,
        request.ready,
        request.name,
        request.rank,
        request.deadline_s,
        impatient=request.impatient,
        dry=True,
    )
