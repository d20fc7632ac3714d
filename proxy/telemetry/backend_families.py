"""The families of single backends: load, health, speed, and what its engine and GPUs tell."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from prometheus_client import Metric

from penstock.balancing.backend import AdminState, Backend, State
from penstock.balancing.engine_report import EngineReport
from penstock.balancing.speed.compare import slower
from penstock.proxy.telemetry.exposition import Row, parts

_LOADS: Final[Mapping[str, Callable[[Backend], float]]] = {
    "backend_queued_prefill_tokens": lambda each: each.queued_prefill_tokens,
    "backend_active_decode_tokens": lambda each: each.active_decode_tokens,
    "backend_requests_in_flight": lambda each: each.requests_in_flight,
    "backend_gpu_floor_seconds": lambda each: each.gpu_floor_s,
}
# What an engine tells. An engine without a recent report has no series.
_REPORTED: Final[Mapping[str, Callable[[EngineReport], float | None]]] = {
    "backend_engine_running": lambda report: report.running,
    "backend_engine_waiting": lambda report: report.waiting,
    "backend_kv_usage_ratio": lambda report: report.kv_usage,
    "backend_kv_capacity_tokens": lambda report: report.kv_tokens,
    "backend_preemptions": lambda report: report.preemptions,
    "backend_engine_prompt_tokens": lambda report: report.prompt_tokens,
    "backend_engine_steps": lambda report: report.steps,
    "backend_engine_step_tokens": lambda report: report.step_tokens,
    "backend_prefix_queries_tokens": lambda report: report.prefix_queries_tokens,
    "backend_prefix_hits_tokens": lambda report: report.prefix_hits_tokens,
}
_SPEEDS: Final[Mapping[str, Callable[[Backend], float | None]]] = {
    "backend_prefill_tokens_per_second": lambda each: (
        each.prefill_speed.work_per_s if each.prefill_speed.weight > 0.0 else None
    ),
    "backend_decode_step_seconds": lambda each: (
        each.decode_speed.itl_s(each.decode_speed.usual_held_tokens)
        if each.decode_speed.weight > 0.0
        else None
    ),
    "backend_cold_start_seconds": lambda each: each.cold_start.last_s,
}


def backend_families(backends: Sequence[Backend], now_s: float) -> Iterator[Metric]:
    """All families of backends, in parts."""
    for name, load in _LOADS.items():
        yield from parts(name, (((each.name,), float(load(each))) for each in backends))
    yield from parts(
        "backend_can_serve",
        (((each.pool, each.name), float(each.can_serve)) for each in backends),
    )
    yield from parts("backend_state", _states(backends))
    yield from parts("backend_admin_state", _admin_states(backends))
    for name, reported in _REPORTED.items():
        yield from parts(name, _told(backends, reported, now_s))
    yield from parts("backend_engine_waiting_by_reason", _waiting(backends, now_s))
    for name, speed in _SPEEDS.items():
        rows = ((each.name, speed(each)) for each in backends)
        yield from parts(name, (((who,), value) for who, value in rows if value is not None))
    yield from parts("backend_slowness_ratio", _slowness(backends, now_s))
    yield from _gpus(backends, now_s)


def _states(backends: Sequence[Backend]) -> Iterator[Row]:
    for backend in backends:
        for state in State:
            yield (backend.name, state.value), float(backend.state is state)


def _admin_states(backends: Sequence[Backend]) -> Iterator[Row]:
    for backend in backends:
        for wanted in AdminState:
            yield (backend.name, wanted.value), float(backend.admin_state is wanted)


def _told(
    backends: Sequence[Backend], told: Callable[[EngineReport], float | None], now_s: float
) -> Iterator[Row]:
    for backend in backends:
        report = backend.report
        if report is not None and report.freshness(now_s):
            value = told(report)
            if value is not None:
                yield (backend.name,), value


def _waiting(backends: Sequence[Backend], now_s: float) -> Iterator[Row]:
    for backend in backends:
        report = backend.report
        if report is not None and report.freshness(now_s):
            yield (backend.name, "capacity"), report.waiting_for_room
            yield (backend.name, "deferred"), report.deferred


def _slowness(backends: Sequence[Backend], now_s: float) -> Iterator[Row]:
    ordered = sorted(backends, key=_pool_of)
    for _, peers in groupby(ordered, _pool_of):
        for backend, pace in slower(tuple(peers), now_s):
            yield (backend.name, "prefill"), pace.prefill
            yield (backend.name, "decode"), pace.decode


def _pool_of(backend: Backend) -> str:
    return backend.pool


def _gpus(backends: Sequence[Backend], now_s: float) -> Iterator[Metric]:
    """What exporters tell of the GPUs, as long as it is recent."""
    told = [(each.name, each.gpus) for each in backends]
    fresh = [(name, gpus) for name, gpus in told if gpus is not None and now_s < gpus.until_s]
    yield from parts(
        "backend_gpu_utilization_ratio",
        (((n,), g.utilization) for n, g in fresh if g.utilization is not None),
    )
    yield from parts(
        "backend_gpu_memory_used_bytes",
        (((n,), g.used_bytes) for n, g in fresh if g.used_bytes is not None),
    )
    yield from parts(
        "backend_gpu_memory_free_bytes",
        (((n,), g.free_bytes) for n, g in fresh if g.free_bytes is not None),
    )
