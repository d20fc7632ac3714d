"""The proxy itself, as JSON: since when it runs, what it does now, and what it refuses."""

from collections.abc import Mapping
from time import time
from typing import Final

from penstock import proxy
from penstock.health.monitor import Monitor
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.reload.reload import Reload

# Requests may be refused for lack of memory this long before others shall get them instead.
REFUSING_S: Final = 10.0


def state_of(plane: DataPlane, monitor: Monitor) -> str:
    """What `/readyz` tells. Also ready when all backends are down: restarting the proxy would not
    help. Not ready while its memory is short, for another instance has its own."""
    if plane.draining:
        return "draining"
    short_s = plane.overload.short_s(plane.now())
    if not plane.memory.suffices or short_s > REFUSING_S:
        return "memory"
    return "ready" if monitor.started.is_set() else "starting"


def proxy_listing(
    plane: DataPlane, reload: Reload, state: str, former: Mapping[int, int]
) -> dict[str, object]:
    """`state`: as `/readyz` tells it. `former`: requests of processes from before a restart."""
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
        "former": [{"pid": pid, "requests": count} for pid, count in former.items()],
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
