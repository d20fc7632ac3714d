"""A new backend beside its peers: one that was added to a running pool, or is another engine now.

It is judged as a canary is, by its requests against those of its peers over the same time. Which
backend gets a request is no lot, so only what it does wrong is compared, by size of prompt:
failures before the first token, and answers that break off. Not its speed, which the policies
measure, nor refusals and empty answers, which a client may aim at it.
"""

from enum import Enum
from typing import Final, NamedTuple

from penstock.balancing.canary.judge import Habits, Judge
from penstock.balancing.canary.metrics import Ended, metrics_of
from penstock.conf.canary import JudgeSettings

# That a backend which is like its peers is taken out. Backends come back more often than versions.
CHANCE: Final = 0.001
# Fewer requests than this do not show that it is like them.
REQUESTS_MIN: Final = 100
# After so many requests, or so long after its first one, it is new no longer, whatever is known.
REQUESTS_MAX: Final = 5_000
JUDGED_S_MAX: Final = 3_600.0
COMPARED: Final = JudgeSettings(
    hung=None, empty=None, refused=None, ttft=None, itl=None, length=None
)


class Outcome(Enum):
    """What became of a new backend."""

    WORSE = "worse"
    NO_WORSE = "no_worse"
    UNCLEAR = "unclear"  # the requests, or the time, were used up


class Found(NamedTuple):
    """An outcome, and the figures that show it."""

    outcome: Outcome
    why: str


class Newcomer:
    """One backend that is new in its pool."""

    def __init__(self, *, alone: bool = False) -> None:
        """`alone`: what one client's requests show is enough."""
        self._judge = Judge(
            metrics_of(COMPARED), Habits(), CHANCE, requests_min=REQUESTS_MIN, alone=alone
        )
        self._first_s: float | None = None
        self.requests = 0  # of its own

    def add(self, ended: Ended, now_s: float) -> None:
        """A request of the pool has ended. `ended.canary`: it was at this backend."""
        if ended.canary:
            self.requests += 1
            if self._first_s is None:
                self._first_s = now_s
        self._judge.add(ended, now_s)

    def look(self, now_s: float) -> Found | None:
        """What is known of it by now. None: not enough. To be called every second or so."""
        worse = self._judge.worse(now_s)
        if worse:
            return Found(Outcome.WORSE, worse)
        if not self._judge.lack():
            return Found(Outcome.NO_WORSE, self._judge.words())
        over = self._first_s is not None and now_s - self._first_s >= JUDGED_S_MAX
        if over or self.requests >= REQUESTS_MAX:
            return Found(Outcome.UNCLEAR, self._judge.lack())
        return None
