"""Reads the facts from backends and from the queue of a pool. Changes nothing but their time."""

from collections import Counter
from typing import Final

from penstock.balancing.admission.pool_queue import PoolQueue
from penstock.balancing.backend import Backend
from penstock.balancing.engine_report import STALE_S
from penstock.balancing.lease import Lease
from penstock.balancing.speed.compare import Pace
from penstock.balancing.verdict.facts import BackendFacts

# A prompt may take so many times what its work should take before it counts as late.
PATIENCE: Final = 1.5
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
        told_s=report.at_s if report is not None else None,
        running=report.running if report is not None else 0,
        waiting=report.waiting - report.deferred if report is not None else 0,
        deferred=report.deferred if report is not None else 0,
        kv_usage=report.kv_usage if report is not None else 0.0,
        generated_tokens=report.generated_tokens if report is not None else 0,
        preemptions=report.preemptions if report is not None else 0,
        steps=report.steps if report is not None else 0,
        step_tokens=report.step_tokens if report is not None else 0,
    )


def _overdue_s(backend: Backend, now_s: float) -> float:
    """How long its oldest prompt waits beyond its own work. A lone one keeps nobody waiting: it may
    take long for reasons of its own, such as a grammar."""
    head = backend.queue.head
    if not isinstance(head, Lease) or head.silent or len(backend.queue) < PROMPTS_MIN:
        return 0.0
    own_s = PATIENCE * head.queued_work * backend.prefill_speed.work_s
    return max(0.0, now_s - head.began_s - own_s)


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
