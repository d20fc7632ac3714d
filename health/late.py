"""Whether a deep probe that is late waits for work that the engine does.

Engines prefill first come, first served: behind a prompt of 300,000 tokens a token takes minutes,
and in a quiet fleet no stream shows meanwhile that the engine works. Its own metrics do: its cache
fills with each piece of the prompt. What is late then is busy, for a time that the oldest prompt
bounds: an engine that is stuck, or one that nothing of ours keeps busy, is not.
Pure: time is an argument.
"""

from typing import Final

from balancing.backend import Backend
from balancing.engine_report import EngineReport

# The oldest prompt may have three times the tokens that it was taken for, so nine times the
# attention, on a slower engine than the first guess.
WORKING_TIMES: Final = 12.0
# Of an engine without metrics only our own account tells, on such an engine.
UNTOLD_TIMES: Final = 2.0
EXCUSED_S_MAX: Final = 600.0
# Work that came by another way is not in our account.
HIDDEN_S: Final = 30.0
# Between two signs of work lies one piece of the prompt: 16,000 tokens of 300,000, which is twice
# its share of the time at the prompt's end.
PIECE: Final = 1 / 8


class Late:
    """Late deep probes in a row at one backend, and what its engine showed meanwhile."""

    __slots__ = ("_backend", "_before", "_moved_after_s", "_since_s", "_told")

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._before: EngineReport | None = None
        self._told = False  # the last question for metrics was answered
        self._moved_after_s = float("-inf")  # it worked at some time after this
        self._since_s: float | None = None  # when the first late probe of the row began

    def may_come(self, timeout_s: float) -> bool:
        """Whether there may be work for which a probe waits so long."""
        return self._backend.head_prefill_s >= timeout_s or self._hidden(self._backend.report)

    def read(self, report: EngineReport | None, began_s: float) -> bool:
        """What its metrics say now, if anything.

        Returns whether they show that it made tokens since the probe began.
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
        """It generates: the row is over."""
        self._since_s = None

    def excused(self, began_s: float, now_s: float, timeout_s: float) -> bool:
        """Whether the probe that began then and was given up now only had to wait.

        `timeout_s` is for one that has nothing before it: less than that explains no wait.
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
        """Whether the engine has requests of others."""
        own = self._backend.own.engine_requests
        return report is not None and report.running + report.waiting > own
