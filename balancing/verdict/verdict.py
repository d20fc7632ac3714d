"""The verdict on one pool, second by second: it changes only when a cause lasts.

A pool is slow for moments all the time. A verdict that follows each of them cannot be read. So a
cause is told once it was found in most of the last seconds, and it is over once nothing was wrong
for some seconds on end.
"""

from collections import deque
from typing import Final

from penstock.balancing.verdict.cause import CALM, FINE, Finding, Kind
from penstock.balancing.verdict.rules import find
from penstock.balancing.verdict.window import Seen, Window

# Looks, one a second: of the last LOOKS so many must agree, and so many on end must be fine.
LOOKS: Final = 6
AGREE: Final = 4
FINE_LOOKS: Final = 10
# What is certain needs no second look beyond this.
CERTAIN: Final = 2
_OF_ONE: Final = (Kind.UNEVEN, Kind.FAILING)
_CERTAIN: Final = (Kind.STARTING, Kind.FAILING)


class Verdict:
    """`finding`: what is told now. `worst`: the same cause when it hurt most. `since_s`: when this
    cause was seen first. `seen_s`: when there was trouble last, of this cause or another."""

    def __init__(self, now_s: float) -> None:
        self.finding = self.worst = FINE
        self.since_s = now_s
        self.seen_s = now_s
        self.window = Window()
        self._last: deque[tuple[float, Finding]] = deque(maxlen=max(LOOKS, FINE_LOOKS))

    def look(self, backends: list[Seen]) -> bool:
        """Look at what the window has of the pool, and of its backends. Call it once a second.

        Returns whether the verdict has changed.
        """
        found = find(self.window, backends)
        self._last.append((self.window.now.at_s, found))
        if _same(found, self.finding):
            self.finding, self.seen_s = found, self.window.now.at_s  # with the figures of now
            self.worst = max(self.worst, found, key=_hurts)
            return False
        if found.kind not in CALM and not self.finding.by_state:
            self.seen_s = self.window.now.at_s  # requests still wait, for whatever reason
        wanted = self._wanted(found)
        if wanted is None:
            return False
        self.finding = self.worst = wanted
        self.seen_s = self.window.now.at_s
        seen_s = [at_s for at_s, each in self._last if _same(each, wanted)]
        self.since_s = min(seen_s, default=self.seen_s)
        return True

    def _wanted(self, found: Finding) -> Finding | None:
        """What should be told instead. None: what is told."""
        if found.kind in CALM:
            looks = CERTAIN if self.finding.by_state else FINE_LOOKS
            last = list(self._last)[-looks:]
            over = len(last) == looks and all(each.kind in CALM for _, each in last)
            return found if over else None
        if len(self._last) == 1 and found.kind in _CERTAIN:
            return found  # nothing was told before
        agree = sum(_same(each, found) for _, each in self._recent())
        wrong = sum(each.kind not in CALM for _, each in self._recent())
        if self.finding.kind in CALM and 2 * agree >= wrong:
            agree = wrong  # what is wrong has lasted: that it has two causes puts nothing off
        if agree >= (CERTAIN if found.kind in _CERTAIN else AGREE):
            return found
        if found.missed and self.finding.kind is Kind.FINE:  # until its cause is sure
            return Finding(Kind.MISSED, "unclear", missed=found.missed)
        return None

    def _recent(self) -> list[tuple[float, Finding]]:
        return list(self._last)[-LOOKS:]


def _hurts(finding: Finding) -> tuple[float, ...]:
    """How much users notice, to compare findings of one cause."""
    return tuple([finding.figures.get(name, 0.0) for name in ("wait_s", "failures", "gap_s")])


def _same(one: Finding, other: Finding) -> bool:
    """Whether they are of one cause. Where it is one backend that is to blame, it is that one."""
    if (one.kind, one.detail) != (other.kind, other.detail):
        return False
    return one.kind not in _OF_ONE or one.backend == other.backend
