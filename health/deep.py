"""A deep probe of one backend: it asks for one token, and looks what else shows that it works."""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from penstock.balancing.backend import Backend
from penstock.balancing.engine_report import EngineReport
from penstock.conf.health import HealthSettings
from penstock.health.probes import Outcome, Task
from penstock.health.stall import UNPROBED_STALL_S, Late, Stall

# This many failed requests in a row ask for a deep probe at once and shorten the pause after it.
# The probe decides whether the backend is at fault, long before the run is long enough to eject.
PROBES_ROW: Final = 2


class Asks(Protocol):
    """How a backend is asked. `probes.Prober` does it over HTTP."""

    async def live(self, timeout_s: float) -> Outcome: ...
    async def ready(self, timeout_s: float) -> Outcome: ...
    async def deep(
        self, model: str, task: Task | None, timeout_s: float
    ) -> tuple[Task | None, Outcome]: ...
    async def report(self, timeout_s: float, now_s: float) -> EngineReport | None: ...
    async def version(self, timeout_s: float) -> str | None: ...


class Looked(NamedTuple):
    """The result of a deep probe, and what else was seen."""

    outcome: Outcome
    progressed: bool
    excused: bool = False


class DeepProbe:
    """The deep probes of `backend`. `task` is the usual kind of work, once it is known."""

    __slots__ = ("_backend", "_now", "_stall", "late", "task")

    def __init__(self, backend: Backend, stall: Stall, now: Callable[[], float]) -> None:
        self._backend = backend
        self._stall = stall
        self._now = now
        self.late = Late(backend)
        self.task: Task | None = None

    async def look(self, ask: Asks, model: str, settings: HealthSettings) -> Looked:
        """Ask, and say what the answer means."""
        backend, late = self._backend, self.late
        began_s, timeout_s, progress = self._now(), settings.deep.timeout_s, backend.progress
        report = None
        if late.may_come(timeout_s):
            report = await ask.report(settings.timeout_s, began_s)
        late.read(report, began_s)
        self.task, outcome = await ask.deep(
            model, self.task, timeout_s + self._stall.left_s(self._now())
        )
        progressed, excused = backend.progress != progress, False
        if outcome.reason == "hung" and not progressed:
            if report is not None:
                report = await ask.report(settings.timeout_s, self._now())
                progressed = late.read(report, began_s) or backend.progress != progress
            excused = late.excused(began_s, self._now(), timeout_s)
        unprobed = self.task is Task.NONE and not outcome.own
        if unprobed and self._stall.lasts_s(self._now()) > UNPROBED_STALL_S:
            outcome = Outcome("hung")
        return Looked(outcome, progressed, excused)
