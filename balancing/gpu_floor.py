"""How long each backend did nothing while requests of its pool waited: paid for and not used.

Requests wait in the proxy, or in an engine of the pool. A backend does nothing if it has no request
and its engine tells of none, or if its GPUs hardly compute. One that may get no requests does not
count.
"""

from collections.abc import Callable, Iterable
from typing import Final

from penstock.balancing.backend import Backend
from penstock.balancing.fleet import Pool

# How often it is looked at.
LOOK_S: Final = 1.0
# The most that one look adds: the process may have slept.
ADDS_S_MAX: Final = 2.0


class GpuFloor:
    """Adds to `gpu_floor_s` of backends."""

    def __init__(self) -> None:
        self._looked_s: float | None = None

    def look(self, pools: Iterable[Pool], queued: Callable[[str], int], now_s: float) -> None:
        """Look at all pools, if it is time. `queued`: how many requests of one wait in the proxy.

        What is seen is taken for true since the last look.
        """
        passed_s = now_s - self._looked_s if self._looked_s is not None else 0.0
        if self._looked_s is not None and passed_s < LOOK_S:
            return
        self._looked_s = now_s
        for pool in pools:
            if queued(pool.name) or _waits_in_engine(pool, now_s):
                for backend in pool.backends:
                    if backend.fit and _idles(backend, now_s):
                        backend.gpu_floor_s += min(passed_s, ADDS_S_MAX)


def _waits_in_engine(pool: Pool, now_s: float) -> bool:
    for backend in pool.backends:
        report = backend.report
        if report is not None and report.waiting and report.freshness(now_s) > 0.0:
            return True
    return False


def _idles(backend: Backend, now_s: float) -> bool:
    gpus = backend.gpus
    if gpus is not None and gpus.idles(now_s):
        return True
    if backend.requests_in_flight:
        return False
    report = backend.report
    return report is None or not report.freshness(now_s) or not report.running + report.waiting
