"""A new backend beside its peers: one that was added, or came back after a change of version.

While it starts slowly it gets few requests, and is judged as a canary is: its requests against
those of its peers. Which backend gets a request is no lot: the choice depends on the size of the
prompt, on the load and on caches. Kinds of requests are compared apart, so sizes and loads need
not be alike; but a cache is cold at first, so first tokens are not compared. Nor are lengths.

The proxy does not ask it yet.
"""

from typing import Final

from penstock.balancing.canary.ended import Ended
from penstock.balancing.canary.judge import Habits, Judge
from penstock.balancing.canary.metrics import metrics_of
from penstock.conf.canary import JudgeSettings

# That a backend which is like its peers is taken out. Backends come back more often than versions.
CHANCE: Final = 0.001
# Fewer requests than this do not show that it is like them.
REQUESTS_MIN: Final = 100
COMPARED: Final = JudgeSettings(ttft=None, length=None)


class Newcomer:
    """One backend that is new in its pool."""

    __slots__ = ("_judge",)

    def __init__(self) -> None:
        self._judge = Judge(metrics_of(COMPARED), Habits(), CHANCE, requests_min=REQUESTS_MIN)

    def add(self, ended: Ended, now_s: float) -> None:
        """A request of the pool has ended. `ended.canary`: it was at this backend."""
        self._judge.add(ended, now_s)

    def worse(self, now_s: float) -> str:
        """Why it is to be taken out. Empty while nothing shows that it is worse than its peers."""
        return self._judge.worse(now_s)

    def known(self) -> bool:
        """Whether it is shown to be no worse: it needs to be judged no longer."""
        return not self._judge.lack()
