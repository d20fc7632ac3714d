"""A deep probe of one backend: it asks for one token, and looks what else shows that it works.

If one kind of work fails for requests, the probe asks for that kind, too.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from penstock.balancing.backend import Backend
from penstock.balancing.engine_report import EngineReport
from penstock.conf.health import HealthSettings
from penstock.health.probes import Outcome, Task, task_of
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
    """The result of a deep probe: that of the usual work, and what else was seen."""

    outcome: Outcome
    progressed: bool
    excused: bool = False
    kind_fails: bool | None = None  # whether the kind of work that failed for requests fails again


class DeepProbe:
    """The deep probes of `backend`. `task` is the usual kind of work, once it is known."""

    __slots__ = ("_backend", "_now", "_stall", "late", "task")

    def __init__(self, backend: Backend, stall: Stall, now: Callable[[], float]) -> None:
        self._backend = backend
        self._stall = stall
        self._now = now
        self.late = Late(backend)
        self.task: Task | None = None

    async def look(
        self, ask: Asks, peers: Sequence[Backend], model: str, settings: HealthSettings
    ) -> Looked:
        """Ask, and say what the answers mean together."""
        outcome, progressed, excused, kind_fails = await self._ask(ask, peers, model, settings)
        if not outcome.own:
            if self.task is Task.NONE and self._stall.lasts_s(self._now()) > UNPROBED_STALL_S:
                outcome = Outcome("hung")
            if kind_fails and (outcome.passed or outcome.busy):
                outcome, progressed = Outcome("failing"), False
        return Looked(outcome, progressed, excused, kind_fails)

    async def _ask(
        self, ask: Asks, peers: Sequence[Backend], model: str, settings: HealthSettings
    ) -> Looked:
        """Ask for the kind of work that fails for requests, if any, and for the usual kind."""
        backend, late = self._backend, self.late
        began_s, timeout_s, progress = self._now(), settings.deep.timeout_s, backend.progress
        report = None
        if late.may_come(timeout_s):
            report = await ask.report(settings.timeout_s, began_s)
        late.read(report, began_s)
        failing = await self._ask_failing(
            ask, peers, model, timeout_s + self._stall.left_s(self._now())
        )
        if failing is not None and failing.own:
            return Looked(failing, progressed=False)
        if failing is not None and failing.passed:
            return Looked(failing, progressed=True, kind_fails=False)
        self.task, outcome = await ask.deep(
            model, self.task, timeout_s + self._stall.left_s(self._now())
        )
        progressed, excused = backend.progress != progress, False
        if outcome.reason == "hung" and not progressed:
            if report is not None:
                report = await ask.report(settings.timeout_s, self._now())
                progressed = late.read(report, began_s) or backend.progress != progress
            excused = late.excused(began_s, self._now(), timeout_s)
        fails = failing is not None and not failing.busy
        if failing is not None and failing.reason == "hung":  # other work may have delayed it
            fails = outcome.passed and not progressed
        return Looked(outcome, progressed, excused, True if fails else None)

    async def _ask_failing(
        self, ask: Asks, peers: Sequence[Backend], model: str, timeout_s: float
    ) -> Outcome | None:
        """Ask for the kind of work that fails in a row, if the usual probe asks for another one.

        None if no other backend serves that kind: what fails everywhere accuses no backend.
        """
        backend = self._backend
        path = backend.accusers.path
        task = task_of(path)
        if backend.failures_in_row < PROBES_ROW or task is None or task is self.task:
            return None
        if not any(path in peer.served for peer in peers if peer is not backend):
            return None
        _, outcome = await ask.deep(model, task, timeout_s)
        return outcome
