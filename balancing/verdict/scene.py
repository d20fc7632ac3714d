"""A window, and what several rules ask of it."""

from statistics import median
from typing import Final

from penstock.balancing.admission.queued_request import WaitReason
from penstock.balancing.verdict.window import Seen, Window

# A request that waits for longer than this, beyond its own work, is slow.
WAIT_S: Final = 1.0
# Fewer in the queue are no queue.
WAITING_MIN: Final = 2.0
# Of what waits, of tokens or of clients, most: and nearly all.
MOST: Final = 0.5
NEARLY_ALL: Final = 0.8


class Scene:
    """One look at a pool. `backends`: what the window tells of each."""

    def __init__(self, window: Window, backends: list[Seen]) -> None:
        self.window = window
        self.now = window.now
        self.backends = backends
        self.serving = [each for each in self.backends if each.now.can_serve]
        self.failures = sum(each.failures for each in backends)
        self.requests = sum(each.requests for each in backends)
        self.lacks = window.lacks()
        self.queued_s = window.waits_s if window.waiting >= WAITING_MIN else 0.0

    @property
    def waits_s(self) -> float:
        """How long requests wait, in penstock or in engines, beyond their own work."""
        return max([self.queued_s, *[each.overdue_s for each in self.serving]])

    @property
    def waits(self) -> bool:
        return self.waits_s >= WAIT_S

    @property
    def gap_s(self) -> float:
        """The usual time between two tokens of a stream. 0.0: not known."""
        gaps = [each.gap_s for each in self.serving if each.gap_s]
        return median(gaps) if gaps else 0.0

    def share(self, *lacks: WaitReason) -> float:
        """Of the next ones in the queue, how many wait for one of these.

        Who waits because others go first does not count: they wait for what those lack.
        """
        counted = self.lacks.total() - self.lacks[WaitReason.CLASS] - self.lacks[WaitReason.TURN]
        if not self.queued_s or not counted:
            return 0.0
        return sum(self.lacks[each] for each in lacks) / counted


def only(backends: list[Seen]) -> str:
    """The name of the only one."""
    return backends[0].now.name if len(backends) == 1 else ""
