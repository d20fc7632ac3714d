"""All backends, as JSON: those in use, and those that a reload removed and that still work."""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain

from penstock.balancing.backend import Backend
from penstock.balancing.lease import Lease
from penstock.balancing.speed.compare import Pace
from penstock.health.machine import ToReturn
from penstock.health.monitor import Monitor
from penstock.health.probes import LastProbe
from penstock.proxy.admin.verdicts import Verdicts
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.reload.retirement import Retirement
from penstock.proxy.telemetry.pool_metrics import Lately


def describe(
    backend: Backend,
    last_probes: Mapping[str, LastProbe],
    now_s: float,
    *,
    to_return: ToReturn | None = None,
    lately: Lately | None = None,
    pace: Pace | None = None,
    verdict: str | None = None,
    newcomer: dict[str, object] | None = None,
    found: dict[str, object] | None = None,
    servers: int = 1,
    removed: bool = False,
) -> dict[str, object]:
    """State, load and speed of one backend, as JSON.

    `lately`: its last minutes, None if it had no request yet. `pace`: how many times as long as its
    peers it takes, if that is known. `verdict`: what the sentence for its pool says of it, if that
    is about this backend. `newcomer`: how it is judged if it is new. `found`: which source told it,
    and since when. None: it is listed. `servers`: how many its name stands for. `removed`: it is in
    the configuration no more, and requests still run there.
    """
    backend.advance(now_s)
    slow_start = backend.slow_start
    alive = last_probes.get("live")
    return {
        "name": backend.name,
        "url": backend.url,
        "pool": backend.pool,
        "state": backend.state,
        "reason": backend.reason,
        "admin_state": backend.admin_state,
        "removed": removed,
        "found": found,
        "servers": servers,
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
        "slower": round(pace.slower, 2) if pace is not None else None,
        "slower_in": pace.slower_in if pace is not None and pace.slower > 1.0 else None,
        "newcomer": newcomer,
        "verdict": verdict,
        "lately": _lately(lately, backend, now_s),
        "prefix_cache": {
            "blocks": len(backend.cache.index),
            "capacity_blocks": backend.cache.index.capacity,
        },
        # Nothing is known of one whose port is closed, whatever it told before.
        "engine": _engine(backend, now_s) if alive is None or alive.passed else None,
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
        "token_ms": round(1e3 * decode.itl_s(decode.usual_held_tokens), 4) if decodes else None,
        "decode_step_ms": round(1e3 * decode.step_s, 4) if decodes else None,
        "decode_ms_per_1k_held_tokens": round(1e6 * decode.held_token_s, 6) if decodes else None,
    }


def _lately(lately: Lately | None, backend: Backend, now_s: float) -> dict[str, object]:
    """Its last two to three minutes, and its last error, or refusal for load if that is later.

    A first token that is still awaited counts for the time to it: of a hung engine none comes.
    """
    if lately is None:
        return {"first_tokens": 0, "ttft_p95_s": None, "failures": 0, "last_failure": None}
    lately.advance(now_s)
    ttft_s, failure, busy_at_s = lately.ttft_s(0.95), None, backend.left_alone.charged_s
    head = backend.queue.head
    if isinstance(head, Lease) and not head.silent:
        ttft_s = max(ttft_s or 0.0, now_s - head.began_s)
    if lately.failure or busy_at_s:
        age_s = round(max(0.0, now_s - max(lately.failed_s, busy_at_s)), 1)
        reason = "busy" if busy_at_s > lately.failed_s else lately.failure
        failure = {"reason": reason, "age_s": age_s}
    return {
        "first_tokens": lately.first_tokens,
        "ttft_p95_s": round(ttft_s, 4) if ttft_s is not None else None,
        "failures": lately.failures,
        "last_failure": failure,
    }


def _engine(backend: Backend, now_s: float) -> dict[str, object] | None:
    """The engine's last own metrics. None when it has none."""
    report = backend.report
    if report is None:
        return None
    queries = report.prefix_queries_tokens
    return {
        "age_s": round(now_s - report.at_s, 1),
        "fresh": report.freshness(now_s) > 0.0,
        "running": report.running,
        "waiting": report.waiting,
        "hidden_requests": round(report.hidden_requests(now_s), 1),
        "kv_usage": round(report.kv_usage, 4),
        "kv_told": report.kv_told,
        "kv_tokens": report.kv_tokens,
        "prefix_hit_rate": round(report.prefix_hits_tokens / queries, 4) if queries else None,
        "awake": report.awake,
    }


class FleetListing:
    """Collects what is known of a backend from those who know it."""

    def __init__(
        self,
        plane: DataPlane,
        monitor: Monitor,
        retirement: Retirement,
        verdicts: Verdicts,
        origin: Callable[[Backend], dict[str, object] | None],
    ) -> None:
        self._plane = plane
        self._monitor = monitor
        self._retirement = retirement
        self._verdicts = verdicts
        self._origin = origin

    def entries(self) -> Iterator[dict[str, object]]:
        """Those of this moment. Each is described when it is its turn."""
        removed = [each for each, _ in self._retirement.members]
        return chain(
            map(self.described, self._plane.fleet.backends),
            (self.described(each, removed=True) for each in removed),
        )

    def described(self, backend: Backend, *, removed: bool = False) -> dict[str, object]:
        """One backend, now."""
        counts = self._plane.metrics.of(backend.pool).backends.get(backend.name)
        connections = self._plane.connections.get(backend.name)
        return describe(
            backend,
            self._monitor.last_probes(backend),
            self._plane.now(),
            to_return=self._monitor.to_return(backend),
            lately=counts.lately if counts is not None else None,
            pace=self._verdicts.pace(backend),
            verdict=self._verdicts.accuses(backend),
            newcomer=self._plane.newcomers.told(backend),
            found=self._origin(backend),
            servers=connections.host.servers if connections is not None else 1,
            removed=removed,
        )
