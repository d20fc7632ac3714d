"""Describes a backend for `/api/v1/backends`."""

from collections.abc import Mapping

from penstock.balancing.backend import Backend
from penstock.health.machine import ToReturn
from penstock.health.probes import LastProbe


def describe(
    backend: Backend,
    last_probes: Mapping[str, LastProbe],
    now_s: float,
    *,
    to_return: ToReturn | None = None,
    removed: bool = False,
) -> dict[str, object]:
    """State, load and speed of one backend, as JSON.

    `removed`: a reload removed it from the configuration, and requests still run there.
    """
    backend.advance(now_s)
    slow_start = backend.slow_start
    return {
        "name": backend.name,
        "url": backend.url,
        "pool": backend.pool,
        "state": backend.state,
        "reason": backend.reason,
        "admin_state": backend.admin_state,
        "removed": removed,
        "can_serve": not removed and backend.can_serve,
        "weight": backend.weight,
        "share": round(slow_start.share(now_s), 3) if slow_start is not None else 1.0,
        "models": sorted(backend.models or ()),
        "requests_in_flight": backend.requests_in_flight,
        "queued_prefill_tokens": backend.queued_prefill_tokens,
        "active_decode_tokens": backend.active_decode_tokens,
        "streams": backend.streams,
        "requests_total": backend.requests_total,
        "failures_total": backend.failures_total,
        "wait_s": round(backend.wait_s(now_s), 6),
        **_speeds(backend),
        "prefix_cache": {
            "blocks": len(backend.cache.index),
            "capacity_blocks": backend.cache.index.capacity,
            "hit_correction": round(backend.cache.hits.ratio, 4),
        },
        "engine": _engine(backend, now_s),
        "last_probe": {
            level: {
                "at": round(probe.at_unix_s, 3),
                "passed": probe.passed,
                "reason": probe.reason,
            }
            for level, probe in last_probes.items()
        },
        "to_return": {**to_return._asdict(), "wait_s": round(to_return.wait_s, 1)}
        if to_return is not None
        else None,
    }


def _speeds(backend: Backend) -> dict[str, float | None]:
    """What was measured. None before the first sample: then the policies use typical values."""
    prefill, decode = backend.prefill_speed, backend.decode_speed
    decodes = decode.weight > 0.0
    return {
        "prefill_tokens_per_s": round(prefill.work_per_s) if prefill.weight > 0.0 else None,
        "decode_step_ms": round(1e3 * decode.step_s, 4) if decodes else None,
        "decode_ms_per_1k_held_tokens": round(1e6 * decode.held_token_s, 6) if decodes else None,
    }


def _engine(backend: Backend, now_s: float) -> dict[str, object] | None:
    """The engine's last own metrics. None when it has none."""
    report = backend.report
    if report is None:
        return None
    queries = report.prefix_queries_tokens
    return {
        "age_s": round(now_s - report.at_s, 1),
        "running": report.running,
        "waiting": report.waiting,
        "hidden_requests": round(report.hidden_requests(now_s), 1),
        "kv_usage": round(report.kv_usage, 4),
        "kv_tokens": report.kv_tokens,
        "prefix_hit_rate": round(report.prefix_hits_tokens / queries, 4) if queries else None,
        "awake": report.awake,
    }
