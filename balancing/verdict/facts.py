"""What is known of one pool at one moment, as far as a verdict needs it.

It is read from backends and from the queue of the pool, and changes nothing but their time.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.balancing.admission.pool_queue import PoolQueue
from penstock.balancing.admission.queued_request import WaitReason
from penstock.balancing.backend import Backend
from penstock.balancing.engine_report import STALE_S, EngineReport
from penstock.balancing.lease import Lease
from penstock.balancing.speed.compare import ALIKE, Pace
from penstock.balancing.speed.estimates import RecentPace
from penstock.balancing.verdict.cause import Missed


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """One backend. Counters grow; the rest is as of now. 0 or None: not known."""

    name: str
    can_serve: bool = True
    state: str = "ready"
    reason: str = ""
    left_alone: bool = False  # it has just refused a request for load
    streams: int = 0
    sequences: int = 0  # of all requests sent there: what its engine should run or queue
    overdue_s: float = 0.0  # its oldest prompt is that much later than its own work explains
    backlog_s: float = 0.0  # the prefill before a new prompt, at its measured speed
    held_share: float = 0.0  # of its KV cache, by our own count
    step_s: float = 0.0  # between two tokens with what it holds and no prefill beside
    pace: Pace = ALIKE  # how many times as long as its peers it takes
    wanted: int = 0  # requests in the queue that would go there
    requests_total: int = 0  # that have ended: all that an engine works on, and what failed
    failures_total: int = 0
    # Of other clients than the one with most of them (`client_counter`), and who that is.
    failures_apart_total: int = 0
    requests_apart_total: int = 0
    failed_most: str = ""
    asks_most: str = ""
    starting_s: float = 0.0  # how long it has been starting
    report: EngineReport | None = None  # the engine's own metrics, if they are fresh


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """One pool. `lacks`: of the next requests in the queue, how many wait for what.

    `waiting_by_tenant`: requests in the queue. `served_by_tenant`: requests under way.
    `given_by_tenant`: the tokens that each was given in about the last minute.
    """

    at_s: float
    backends: tuple[BackendFacts, ...] = ()
    waiting: int = 0
    oldest_s: float = 0.0  # how long the first of the queue waits
    lacks: Mapping[WaitReason, int] = field(default_factory=dict)
    waiting_by_tenant: Mapping[str, int] = field(default_factory=dict)
    served_by_tenant: Mapping[str, int] = field(default_factory=dict)
    given_by_tenant: Mapping[str, float] = field(default_factory=dict)
    refused_total: int = 0  # for want of room
    clients: int = 0  # that have a request under way, or an answer that they have not taken
    slow_clients: int = 0  # of these, clients that do not take what came
    slow_by_tenant: Mapping[str, int] = field(default_factory=dict)
    missed: tuple[Missed, ...] = ()  # service levels


# A prompt may take so many times what its work should take before it counts as late.
PATIENCE: Final = 1.5
# A full cache (llm-d warns at 0.9).
FULL: Final = 0.9
# Prefill that takes so long makes the streams beside it slow.
LONG_PROMPTS_S: Final = 0.25
# A prompt can only wait for another one if there are two.
PROMPTS_MIN: Final = 2


def backend_facts(
    backend: Backend, pool: PoolQueue | None, pace: Pace, now_s: float
) -> BackendFacts:
    """Of one backend. `pace`: how many times as long as its peers it takes."""
    backend.advance(now_s)
    report = backend.report
    if report is not None and now_s > report.at_s + STALE_S:
        report = None
    capacity = pool.capacities.get(backend) if pool is not None else None
    decode, kv_tokens = backend.decode_speed, (report.kv_tokens or 0) if report else 0
    return BackendFacts(
        name=backend.name,
        can_serve=backend.can_serve,
        state=backend.state.value,
        reason=backend.reason,
        left_alone=backend.left_alone.until_s > now_s,
        streams=backend.streams,
        sequences=backend.own.engine_requests + backend.remote.engine_requests,
        overdue_s=_overdue_s(backend, now_s),
        backlog_s=backend.wait_s(now_s),
        held_share=backend.active_decode_tokens / kv_tokens if kv_tokens else 0.0,
        step_s=decode.itl_s(backend.active_decode_tokens) if decode.weight > 0.0 else 0.0,
        pace=pace,
        wanted=capacity.wanted if capacity is not None else 0,
        requests_total=backend.ended_for.count,
        failures_total=backend.failures_total,
        failures_apart_total=backend.failed_for.others,
        requests_apart_total=backend.ended_for.others,
        failed_most=backend.failed_for.most,
        asks_most=backend.ended_for.most,
        report=report,
    )


def _overdue_s(backend: Backend, now_s: float) -> float:
    """How long its oldest prompt waits beyond its own work. A lone one keeps nobody waiting: it may
    take long for reasons of its own, such as a grammar."""
    head = backend.queue.head
    if not isinstance(head, Lease) or head.silent or len(backend.queue) < PROMPTS_MIN:
        return 0.0
    own_s = PATIENCE * head.queued_work * backend.prefill_speed.work_s
    return max(0.0, now_s - head.began_s - own_s)


def open_paces(pool: PoolQueue, now_s: float) -> dict[Backend, RecentPace]:
    """How the open streams of each backend are decoded, where enough of them tell. They tell
    nothing beside long prompts, or where the engine lacks room and pauses them."""
    found = {}
    for backend, capacity in pool.capacities.items():
        full = backend.report is not None and backend.report.kv_usage >= FULL
        if full or backend.wait_s(now_s) >= LONG_PROMPTS_S:
            continue
        recent = RecentPace()
        for lease in capacity.charges:
            if slower := lease.decode_pace(now_s):
                recent.observe(slower, lease.ask.client)
        if recent.enough:
            found[backend] = recent
    return found


def of_queue(pool: PoolQueue, now_s: float) -> tuple[float, Counter[str]]:
    """How long the first one waits, and how many requests each tenant has there."""
    oldest_s, tenants = 0.0, Counter[str]()
    for backlog in pool.queue.backlogs:
        for requests in backlog.values():
            first = next(iter(requests))
            oldest_s = max(oldest_s, now_s - first.since_s)
            tenants[first.ask.tenant] += len(requests)
    return oldest_s, tenants


def served_of(pool: PoolQueue) -> Counter[str]:
    """How many requests of each tenant are at backends."""
    tenants = Counter[str]()
    for capacity in pool.capacities.values():
        tenants.update([lease.ask.tenant for lease in capacity.charges])
    return tenants


def given_of(pool: PoolQueue, now_s: float) -> dict[str, float]:
    """The tokens that each tenant was given in about the last minute."""
    return {name: each.given.of(now_s) for name, each in pool.queue.tenants.items()}
