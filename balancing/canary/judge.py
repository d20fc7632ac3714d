"""Whether the canary is worse, no worse, or nobody knows yet, in one step.

One client's requests are at most a quarter of what is compared, of both versions. With fewer than
eight groups of clients it is more: twice an even share.

A new backend beside its peers: one that was added to a running pool, or is another engine now.

It is judged as a canary is, by its requests against those of its peers over the same time. Which
backend gets a request is no lot, so only what it does wrong is compared, by size of prompt:
failures before the first token, and answers that break off. Not its speed, which the policies
measure, nor refusals and empty answers, which a client may aim at it.
"""

from collections import defaultdict
from enum import Enum
from typing import Final, NamedTuple

from penstock.balancing.canary.comparison import Comparison
from penstock.balancing.canary.groups import GROUPS, Groups
from penstock.balancing.canary.metrics import Ended, Metric, metrics_of, size_of
from penstock.balancing.canary.usual import ByKind, Usual, Waits
from penstock.conf.canary import JudgeSettings

SHARE_MAX: Final = 0.25
EVEN_SHARES: Final = 2.0
# So many of each version count, whoever sends them.
FREE: Final = 32
# A metric that fewer of the stable version's requests have than this share is not waited for.
SEEN_MIN: Final = 0.02


class Habits:
    """What outlives a step: the groups of clients, and what is late, by metric and kind."""

    def __init__(self) -> None:
        self.groups = Groups()
        self.usual: defaultdict[str, ByKind] = defaultdict(lambda: ByKind(Usual))
        self.waits = Waits()


class _Counted:
    """How many of one version's requests were counted, by group."""

    def __init__(self) -> None:
        self.by_group = [0] * GROUPS
        self.number = 0

    def admits(self, group: int, groups: int) -> bool:
        """Count one, unless its group has its share."""
        share = max(SHARE_MAX, EVEN_SHARES / max(1, groups))
        if self.number >= FREE and self.by_group[group] >= share * self.number:
            return False
        self.by_group[group] += 1
        self.number += 1
        return True


class Judge:
    """The comparisons of one step."""

    def __init__(
        self,
        metrics: list[Metric],
        habits: Habits,
        chance: float,
        *,
        requests_min: int,
        alone: bool = False,
    ) -> None:
        """`chance`: that it calls an equal version worse. `alone`: one client is enough."""
        self.comparisons = [Comparison(each, chance, habits.usual[each.name]) for each in metrics]
        self._habits = habits
        self._requests_min = requests_min
        self._alone = alone
        self._found: Comparison | None = None
        self.canary = _Counted()
        self.stable = _Counted()

    def add(self, ended: Ended, now_s: float) -> None:
        """One more request has ended. One that shows nothing is not counted either."""
        if not [each for each in self.comparisons if each.metric.read(ended) is not None]:
            return
        groups = self._habits.groups
        group = groups.of(ended.client)
        counted = self.canary if ended.canary else self.stable
        # Fresh ones are drawn by lot: a cap that a client can fill for one version would aim them.
        if not counted.admits(group, groups.number) and not ended.fresh:
            return
        if ended.first_s is not None and not ended.canary:
            self._habits.waits.add(size_of(ended), ended.first_s)
        for each in self.comparisons:
            each.add(ended, group, now_s)

    def worse(self, now_s: float) -> str:
        """Why the canary is worse, with figures. Empty while nothing shows it.

        It may be asked at any time, and as often as one likes.
        """
        for each in self.comparisons:
            if each.advance(now_s) and self._found is None and each.is_worse(alone=self._alone):
                self._found = each
        return self._found.words() if self._found is not None else ""

    def lack(self) -> str:
        """What keeps the canary from its next step. Empty if it is shown to be no worse."""
        if self.canary.number < self._requests_min:
            of = f"{self.canary.number:,} of {self._requests_min:,}"
            return f"too few requests to the new version: {of}"
        for each in self.comparisons:
            if each.seen >= SEEN_MIN * self.stable.number and not each.is_harmless(
                alone=self._alone
            ):
                return self._words(each)
        return ""

    def words(self) -> str:
        """All figures."""
        return "; ".join([each.words() for each in self.comparisons])

    def _words(self, each: Comparison) -> str:
        if not each.canary[0]:
            return f"no requests of both versions to compare {each.metric.name} by"
        if not self._alone and each.is_worse(alone=True):
            return f"worse for one client, not shown for others: {each.words()}"
        if not self._alone and each.is_harmless(alone=True):
            return f"too few clients show that it is no worse: {each.words()}"
        return f"not clear yet: {each.words()}"


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
