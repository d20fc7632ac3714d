"""The families of requests, by pool, and by backend and model where that is bounded."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import Metric

from penstock.proxy.telemetry.family_parts import Row, histograms, parts
from penstock.proxy.telemetry.histogram import Histogram
from penstock.proxy.telemetry.pool_metrics import PROMPT_CLASSES, PoolMetrics, Times

# Each backend has the times of each of its models, so they have fewer buckets than the pool's.
BACKEND_LATENCY_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 40.0, 160.0)
BACKEND_ITL_S: Final = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 1.0)

Pools = Mapping[str, PoolMetrics]
_OF_POOL: Final[Mapping[str, Callable[[PoolMetrics], Histogram]]] = {
    "request_duration_seconds": lambda pool: pool.duration_s,
    "time_to_first_token_seconds": lambda pool: pool.ttft_s,
    "inter_token_latency_seconds": lambda pool: pool.itl_s,
}
_OF_BACKEND: Final[Mapping[str, tuple[Callable[[Times], Histogram], Sequence[float]]]] = {
    "backend_request_duration_seconds": (lambda times: times.duration_s, BACKEND_LATENCY_S),
    "backend_time_to_first_token_seconds": (lambda times: times.ttft_s, BACKEND_LATENCY_S),
    "backend_inter_token_latency_seconds": (lambda times: times.itl_s, BACKEND_ITL_S),
}


def request_families(every: Pools) -> Iterator[Metric]:
    """All families of requests, in parts. `every`: the pools, and "" for requests without one."""
    yield from parts("requests", _statuses(every))
    pools = {name: pool for name, pool in every.items() if name}
    for family in ("prompt_tokens", "completion_tokens", "cached_tokens"):
        counts = [((name,), getattr(pool, family)) for name, pool in pools.items()]
        yield from parts(family, counts)
    for family, histogram in _OF_POOL.items():
        yield from histograms(family, _each(pools, histogram))
    yield from histograms("time_to_first_token_by_prompt_seconds", _by_prompt(pools))
    yield from _of_backends(pools)


def _statuses(every: Pools) -> Iterator[Row]:
    for name, pool in every.items():
        for (backend, status), count in list(pool.requests.items()):
            yield (name, backend, str(status) if status > 9 else f"{status}xx"), count


def _by_prompt(pools: Pools) -> Iterator[tuple[tuple[str, ...], Histogram]]:
    for name, pool in pools.items():
        for prompt, histogram in zip(PROMPT_CLASSES, pool.ttft_by_prompt_s, strict=True):
            yield (name, prompt), histogram


def _of_backends(pools: Pools) -> Iterator[Metric]:
    yield from parts("backend_attempts", _counts(pools, attempts=True))
    yield from parts("backend_routed", _counts(pools, attempts=False))
    for family, (histogram, bounds) in _OF_BACKEND.items():
        rows = ((labels, histogram(times)) for labels, times in _times(pools))
        yield from histograms(family, rows, bounds)


def _each(
    pools: Pools, histogram: Callable[[PoolMetrics], Histogram]
) -> Iterator[tuple[tuple[str, ...], Histogram]]:
    for name, pool in pools.items():
        yield (name,), histogram(pool)


def _counts(pools: Pools, *, attempts: bool) -> Iterator[Row]:
    """Copies, because the loop runs between two parts."""
    for name, pool in pools.items():
        for backend, counts in list(pool.backends.items()):
            told = counts.attempts if attempts else counts.routed
            for reason, count in sorted(told.items()):
                yield (name, backend, str(reason)), count


def _times(pools: Pools) -> Iterator[tuple[tuple[str, ...], Times]]:
    for name, pool in pools.items():
        for backend, counts in list(pool.backends.items()):
            for model, times in list(counts.times.items()):
                yield (name, backend, model), times
