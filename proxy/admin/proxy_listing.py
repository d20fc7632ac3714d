"""The proxy itself, as JSON: since when it runs, what it does now, and what it refuses."""

from time import time

from penstock import proxy
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.reload.reload import Reload


def proxy_listing(plane: DataPlane, reload: Reload, state: str) -> dict[str, object]:
    """`state`: as `/readyz` tells it."""
    now_s, now_unix_s = plane.now(), time()
    up_s = now_s - plane.began_s
    refused = plane.metrics.shed_growth.since(plane.metrics.shed_by_reason())
    return {
        "version": proxy.__version__,
        "build": proxy.build(),
        "state": state,
        "since": round(now_unix_s - up_s, 3),
        "up_s": round(up_s, 1),
        "open_requests": plane.running.total,
        "lag_ms": round(1e3 * plane.overload.lag_s, 1),
        "overload": plane.overload.reason or None,
        "refused_lately": refused,
        "last_reload": _last_reload(reload, now_s, now_unix_s),
        "reload_failed": reload.failed,
        "needs_restart": reload.needs_restart,
        "waiting": {name: count for name, count, _ in plane.queued()},
        "slo_alarms": plane.slos.alarms(),
    }


def _last_reload(reload: Reload, now_s: float, now_unix_s: float) -> dict[str, object] | None:
    """When the last one ended, and how. None: there was none since the start."""
    if reload.ended_s is None:
        return None
    age_s = now_s - reload.ended_s
    return {
        "at": round(now_unix_s - age_s, 3),
        "age_s": round(age_s, 1),
        "succeeded": not reload.failed,
    }
