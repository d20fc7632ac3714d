"""All backends, as JSON: those in use, and those that a reload removed and that still work."""

from collections.abc import Iterator

from penstock.balancing.backend import Backend
from penstock.health.monitor import Monitor
from penstock.proxy.admin.listing import describe
from penstock.proxy.admin.verdicts import Verdicts
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.reload.retirement import Retirement


class FleetListing:
    """Collects what is known of a backend from those who know it."""

    def __init__(
        self, plane: DataPlane, monitor: Monitor, retirement: Retirement, verdicts: Verdicts
    ) -> None:
        self._plane = plane
        self._monitor = monitor
        self._retirement = retirement
        self._verdicts = verdicts

    def entries(self) -> Iterator[dict[str, object]]:
        """Those of this moment. Each is described when it is its turn."""
        removed = [each for each, _ in self._retirement.members]
        return self._entries(self._plane.fleet.backends, removed)

    def _entries(
        self, used: tuple[Backend, ...], removed: list[Backend]
    ) -> Iterator[dict[str, object]]:
        for backend in used:
            yield self.described(backend)
        for backend in removed:
            yield self.described(backend, removed=True)

    def described(self, backend: Backend, *, removed: bool = False) -> dict[str, object]:
        """One backend, now."""
        counts = self._plane.metrics.of(backend.pool).backends.get(backend.name)
        return describe(
            backend,
            self._monitor.last_probes(backend),
            self._plane.now(),
            to_return=self._monitor.to_return(backend),
            lately=counts.lately if counts is not None else None,
            pace=self._verdicts.pace(backend),
            verdict=self._verdicts.accuses(backend),
            newcomer=self._plane.newcomers.told(backend),
            removed=removed,
        )
