"""One kind of request in one stretch of time: what both versions did with it.

When a cell closes depends on how many requests it has and how old it is, never on how they ended.
"""

from typing import Final

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
