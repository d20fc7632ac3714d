"""One metric of both versions in one step of a canary: evidence for and against, and figures.

Requests are compared in cells: one kind of request in one stretch of time. When a cell closes
depends on how many requests it has and how old it is, never on how they ended.
"""

from math import exp, log
from typing import Final

from penstock.balancing.canary.metrics import Ended, Metric
from penstock.balancing.canary.sequential import (
    COMMON_BETS,
    COMMON_HARMLESS_BETS,
    RARE_BETS,
    RARE_HARMLESS_BETS,
    Harmless,
    Worse,
)
from penstock.balancing.canary.usual import ByKind

# A cell is compared after so long if the stable version has some requests in it, and many times as
# many as the canary, or both have many; else after the longest time. Times change little in that.
CLOSES_S: Final = 10.0
CLOSES_AT_LAST_S: Final = 60.0
STABLE_MIN: Final = 8
TIMES: Final = 8
MANY: Final = 40


class Arm:
    """One version's requests in a cell, by the group of their client: all, and the bad ones."""

    __slots__ = ("by_group", "log_sum", "number")

    def __init__(self) -> None:
        self.by_group: dict[int, tuple[int, int]] = {}
        self.number = 0
        self.log_sum = 0.0  # of times: the sum of their logarithms

    def add(self, group: int, *, bad: bool) -> None:
        """One more request."""
        number, its_bad = self.by_group.get(group, (0, 0))
        self.by_group[group] = (number + 1, its_bad + bad)
        self.number += 1

    @property
    def bad(self) -> int:
        return sum([bad for _, bad in self.by_group.values()])


class Cell:
    """Both versions' requests of one kind, all of them fresh or none."""

    __slots__ = ("canary", "fresh", "harmed", "late_log", "opened_s", "stable")

    def __init__(self, now_s: float, late_log: float, *, fresh: bool) -> None:
        """`late_log`: what is above it is bad."""
        self.opened_s = now_s
        self.late_log = late_log
        self.fresh = fresh
        self.canary = Arm()  # as "worse" counts what is bad
        self.harmed = Arm()  # as "harmless" does: the same requests
        self.stable = Arm()

    def closes(self, now_s: float) -> bool:
        """Whether to compare it now."""
        age_s = now_s - self.opened_s
        if age_s < CLOSES_S:
            return False
        canary, stable = self.canary.number, self.stable.number
        if canary and stable >= STABLE_MIN and stable >= min(TIMES * canary, MANY - canary):
            return True
        return age_s >= CLOSES_AT_LAST_S


# The stable's share of bad requests that "worse" takes for equal: a client that fills the cap with
# good requests to the stable version makes its share look less by that.
SLACK: Final = 1 / 3
# The chance that one hostile client has an equal version rolled back, over that without any.
HOSTILE_TIMES: Final = 5.0
# The chance that a version passes a step which is worse by more than is allowed, for each metric.
PASSES: Final = 0.05
# Keys whose first bad request is remembered, for each group.
FAILED_MAX: Final = 64


class Comparison:
    """What is known of one metric since the step began."""

    def __init__(self, metric: Metric, chance: float, usual: ByKind) -> None:
        """`chance`: of a false alarm in this step, all metrics together. `usual`: what is late,
        by the kind of request; it outlives steps."""
        self.metric = metric
        self._chance = chance * metric.part
        if metric.timed:
            self.worse = Worse(COMMON_BETS, 0.0, 0.0, strict=True)
            self.harmless = Harmless(COMMON_HARMLESS_BETS, 0.0)
        else:
            self.worse = Worse(RARE_BETS, SLACK, metric.margin, strict=False)
            self.harmless = Harmless(RARE_HARMLESS_BETS, metric.allowed)
        # Of all cells that were compared: requests, and bad ones.
        self.canary = [0, 0]
        self.stable = [0, 0]
        self.seen = 0  # requests of the stable version that have this metric
        self._ratio_logs = 0.0
        self._cells: dict[int, Cell] = {}
        self._failed: dict[int, set[int]] = {}
        self._usual = usual

    def add(self, ended: Ended, group: int, now_s: float) -> None:
        """Count a request."""
        metric = self.metric
        value = metric.read(ended)
        if value is None:
            return
        self.seen += not ended.canary
        kind = metric.kind(ended)
        late_log = 0.5  # what is bad is 1
        if metric.timed:
            value = log(max(1e-9, value))
            usual = self._usual[kind]
            known, late_log = usual.known, usual.late_log
            if not ended.canary and not ended.unanswered:
                usual.add(value)
            if not known:
                return
        elif metric.once and self._is_out(ended.key, group, bad=value > 0.0):
            return
        place = 2 * kind + ended.fresh
        cell = self._cells.get(place)
        if cell is None:
            cell = self._cells[place] = Cell(now_s, late_log, fresh=ended.fresh)
        self._put(cell, ended, group, value)

    def advance(self, now_s: float) -> bool:
        """Compare all cells that are ready. Returns whether the canary had bad requests there."""
        ready = [place for place, cell in self._cells.items() if cell.closes(now_s)]
        return True in [self._compare(self._cells.pop(place)) for place in ready]

    def is_worse(self, *, alone: bool) -> bool:
        """Whether it is shown that the canary is worse. `alone`: one client is enough."""
        needed = -log(self._chance)
        if alone:
            return self.worse.plain_evidence >= needed
        if self.worse.evidence < needed:
            return False
        return self.worse.common_evidence >= needed - log(HOSTILE_TIMES)

    def is_harmless(self, *, alone: bool) -> bool:
        """Whether it is shown that the canary is not worse by more than is allowed."""
        found = self.harmless.plain_evidence if alone else self.harmless.common_evidence
        return found >= -log(PASSES)

    def _is_out(self, key: int | None, group: int, *, bad: bool) -> bool:
        """Whether a key counts no longer."""
        if key is None:
            return False
        failed = self._failed.get(group)
        if failed is not None and (key in failed or len(failed) >= FAILED_MAX):
            return True
        if bad:
            self._failed.setdefault(group, set()).add(key)
        return False

    def _put(self, cell: Cell, ended: Ended, group: int, value: float) -> None:
        metric, late = self.metric, cell.late_log
        margin = allowed = 0.0
        if metric.timed and ended.canary:
            margin, allowed = log(1.0 + metric.margin), log(1.0 + metric.allowed)
        bad, harmed = value - margin > late, value - allowed > late
        if metric.timed and ended.unanswered and not harmed:
            return  # nobody knows whether it would have been late
        if not ended.canary:
            cell.stable.add(group, bad=bad)
            cell.stable.log_sum += value
            return
        cell.canary.add(group, bad=bad)
        cell.harmed.add(group, bad=harmed)
        cell.canary.log_sum += value

    def _compare(self, cell: Cell) -> bool:
        """Take a closed cell as evidence. Returns whether the canary had bad requests there."""
        canary, stable = cell.canary, cell.stable
        if not canary.number or not stable.number:
            return False
        for sums, arm in ((self.canary, canary), (self.stable, stable)):
            sums[0] += arm.number
            sums[1] += arm.bad
        if self.metric.timed:
            mean_log = canary.log_sum / canary.number - stable.log_sum / stable.number
            self._ratio_logs += canary.number * mean_log
        self.harmless.add(cell.harmed.by_group, stable.by_group)
        if cell.fresh or not self.metric.fresh:
            self.worse.add(canary.by_group, stable.by_group, fresh=cell.fresh)
        return canary.bad > 0

    def words(self) -> str:
        """The figures in a few words. A ratio is the (geometric) mean within cells."""
        metric, (number, _), (of, _) = self.metric, self.canary, self.stable
        if metric.timed:
            ratio = exp(self._ratio_logs / number) if number else 1.0
            return f"{metric.before} {ratio:.2f} x {metric.after} ({number:,} requests)"
        shares = f"{_percent(self.canary)} of {number:,} against {_percent(self.stable)}"
        return f"{metric.before} {shares} of {of:,}"


def _percent(sums: list[int]) -> str:
    percent = 100.0 * sums[1] / max(1, sums[0])
    return f"{percent:.0f} %" if percent >= 10.0 else f"{percent:.2g} %"
