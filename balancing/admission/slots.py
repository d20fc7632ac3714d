"""How many streams an engine runs at once (vLLM's `--max-num-seqs`), which no metric tells.

Beyond that number a request waits in the engine for the end of another one, for seconds, in an
order that nobody can change. So the number is learnt, from two who must agree. We see prompts
without a first token for far longer than the work before them takes. And the engine reports that
requests wait while its KV cache has room. Then it runs as many as it can, and says how many.

Neither alone is enough: a prompt whose image does not come looks stuck, and in each step of a busy
engine some request waits.
"""

from math import inf
from typing import Final

from penstock.balancing.engine_report import EngineReport

# A prompt is stuck if its first token comes later than its work by this, or by this factor.
STUCK_S: Final = 0.5
STUCK_TIMES: Final = 3.0
# Above it requests wait for the cache.
KV_USAGE_MAX: Final = 0.9
# After this time one more is tried: the engine may have been started anew with more.
PROBE_S: Final = 30.0
# One place of so many, and at least one, is for flows that have hardly any.
KEPT_PART: Final = 16


class Slots:
    """Those of one backend. `most`: how many streams it may have at once, as far as is known.

    That is one more than it runs: the next one is there when a stream ends. Without it four
    engines made 4 % fewer tokens a second (bench/history/2026-11-admission.md, "Slots").
    """

    __slots__ = ("_step", "_tried_s", "most", "report")

    def __init__(self) -> None:
        self.most = inf
        self.report: EngineReport | None = None
        self._step = 1
        self._tried_s = 0.0

    def look(
        self, report: EngineReport | None, stuck_s: float, now_s: float, sent: float = inf
    ) -> None:
        """See what a new report says. `stuck_s`: since when a prompt is stuck, inf if none is.
        `sent`: how many streams it has of ours. More are tried only where all are used."""
        if report is not None and report is not self.report:
            self.report = report
            waiting = report.waiting > report.deferred
            if waiting and report.kv_usage < KV_USAGE_MAX and report.at_s >= stuck_s:
                most = report.running + 1.0
                # It may have been one less for a moment, between two steps.
                self.most = most if self.most == inf else max(most, self.most - 1.0)
                self._step, self._tried_s = 1, now_s
            elif not report.waiting and min(report.running, sent) >= self.most:
                self._try_more(now_s)  # it runs all of them, and none waits
        due = self._usable <= sent and self.most < inf and now_s - self._tried_s > PROBE_S
        if due and not self._queues(now_s):
            self._try_more(now_s)

    @property
    def _usable(self) -> float:
        """How many a few flows can use. The last ones are kept for others."""
        return self.most - kept_places(self.most)

    def _queues(self, now_s: float) -> bool:
        """Whether two or more waited in the engine lately. One is sent there beforehand."""
        report = self.report
        if report is None or now_s - report.at_s > PROBE_S:
            return False
        return report.waiting - report.deferred > 1

    def _try_more(self, now_s: float) -> None:
        """Twice as many more each time, until one is stuck."""
        self.most += self._step
        self._step *= 2
        self._tried_s = now_s


def kept_places(most: float) -> int:
    """How many of so many places are left to flows that have fewer than that."""
    return max(1, int(most / KEPT_PART)) if 1 < most < inf else 0
