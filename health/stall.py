"""Deep probes, and how long a backend may show no progress: it may only be busy.

A deep probe asks for one token, and looks what else shows that the backend works.

Engines prefill first come, first served. Behind a prompt of 300,000 tokens a token takes minutes,
and in a quiet fleet no stream shows meanwhile that the engine works. But its own metrics show it:
its KV cache fills with each piece of the prompt. Then a late backend counts as busy for a time that
depends on the oldest prompt. An engine that is stuck, or that has no known work, is not excused.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.balancing.backend import Backend, State
from penstock.balancing.engine_report import EngineReport
from penstock.conf.health import HealthSettings
from penstock.health.probes import Outcome, Prober, Task

# With requests in flight and no token for this time, plus the time that the oldest prompt takes at
# the measured rate, a deep probe comes at once. Engines prefill first come, first served, so the
# prompts behind it add no time. The measured rate is a lower bound, so this is patient enough.
STALL_S: Final = 2.0
PREFILL_S_MAX: Final = 60.0
# A backend without a possible deep probe (transcription) shows only by its requests whether it
# works. The longest file takes less than this.
UNPROBED_STALL_S: Final = 60.0
# The oldest prompt may have three times the estimated tokens, hence nine times the attention, on an
# engine slower than the first guess.
WORKING_TIMES: Final = 12.0
# Without metrics of the engine only our own count of its work tells, on such a slow engine.
UNTOLD_TIMES: Final = 2.0
EXCUSED_S_MAX: Final = 600.0
# Work that did not come through this proxy is not in our count.
HIDDEN_S: Final = 30.0
# Between two signs of work lies one piece of the prompt: 16,000 tokens of 300,000. At the prompt's
# end a piece takes twice its share of the time.
PIECE: Final = 1 / 8


def hangs(backend: Backend) -> bool:
    """Whether probes find that it takes requests and answers nothing.

    A deep probe shows that. One that asks only for its health must have been late several times.
    """
    state, reason = backend.state, backend.reason
    ejected = state is State.EJECTED
    return (ejected and reason == "timeout") or (
        reason == "hung" and (ejected or state is State.SUSPECT)
    )


class Stall:
    """The last progress of one backend's requests."""

    __slots__ = ("_at_s", "_backend", "_seen")

    def __init__(self, backend: Backend, now_s: float) -> None:
        self._backend = backend
        self._seen = backend.progress
        self._at_s = now_s

    def look(self, now_s: float) -> None:
        """Note progress since the last look. Without requests there is nothing to wait for."""
        backend = self._backend
        if backend.progress != self._seen or not backend.own.requests:
            self._seen = backend.progress
            self._at_s = now_s

    def begin(self, now_s: float) -> None:
        """Begin anew: no progress could be noticed until now."""
        self._at_s = now_s

    def lasts_s(self, now_s: float) -> float:
        """How long there was no progress, beyond the time that the present prompt may take."""
        return now_s - self._at_s - min(PREFILL_S_MAX, self._backend.head_prefill_s)

    def left_s(self, now_s: float) -> float:
        """The time left for the prompt that is being prefilled: a probe has to wait for it."""
        return max(0.0, -self.lasts_s(now_s))


class Late:
    """Late deep probes in a row at one backend, and the signs of work meanwhile."""

    __slots__ = ("_backend", "_before", "_moved_after_s", "_since_s", "_told")

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._before: EngineReport | None = None
        self._told = False  # the last request for its metrics was answered
        self._moved_after_s = float("-inf")  # the engine worked some time after this
        self._since_s: float | None = None  # when the first late probe of the run began

    def may_come(self, timeout_s: float) -> bool:
        """Whether a probe may have to wait that long behind other work."""
        return self._backend.head_prefill_s >= timeout_s or self._hidden(self._backend.report)

    def read(self, report: EngineReport | None, began_s: float) -> bool:
        """Take the engine's metrics, if they could be read.

        Returns whether the engine made tokens since the probe began.
        """
        before = self._before
        self._told = report is not None
        if report is None:
            return False
        self._before = report
        if before is None:
            return False
        if report.moves_since(before):
            self._moved_after_s = before.at_s
        return before.at_s >= began_s and report.works_since(before)

    def passed(self) -> None:
        """The engine generates: the run of late probes is over."""
        self._since_s = None

    def excused(self, began_s: float, now_s: float, timeout_s: float) -> bool:
        """Whether a probe from `began_s` to `now_s` was late only because it had to wait.

        `timeout_s` is the time for a probe with no work before it. Shorter work excuses no wait.
        """
        if self._since_s is None:
            self._since_s = began_s
        wait_s = self._backend.head_prefill_s
        if self._told and self._hidden(self._before):
            wait_s = max(wait_s, HIDDEN_S, timeout_s)
        if wait_s < timeout_s:
            return False
        times = UNTOLD_TIMES
        if self._told:
            if self._moved_after_s < began_s - PIECE * wait_s:
                return False
            times = WORKING_TIMES
        return now_s - self._since_s <= min(EXCUSED_S_MAX, times * wait_s)

    def _hidden(self, report: EngineReport | None) -> bool:
        """Whether the engine has requests that did not come through this proxy."""
        own = self._backend.own.engine_requests
        return report is not None and report.running + report.waiting > own


# This many failed requests in a row ask for a deep probe at once and shorten the pause after it.
# The probe decides whether the backend is at fault, long before the run is long enough to eject.
PROBES_ROW: Final = 2


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

    async def look(self, ask: Prober, model: str, settings: HealthSettings) -> Looked:
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
