"""Which request is refused because its first token would come too late.

If a request waits too long, its client has left, or calls the answer late, by the time the engine
has computed the prompt. So a request is refused at once if its first token is predicted too late,
and again when it would be sent too late. That is what keeps a fleet at its best above its capacity.
"""

from random import Random
from typing import Final

from penstock.balancing.admission.ticket import Refused, Ticket

# The share of its deadline after which a first token is predicted too late. It decides how long
# requests wait and hardly how many are served. Once requests have waited for STANDING_S without a
# pause, the share is smaller: a longer queue would add delay and serve no more. The highest class
# keeps its share.
SHARE: Final = 0.6
STANDING_SHARE: Final = 0.2
STANDING_S: Final = 20.0
# This part of its own prefill does not count beside the share. Otherwise long prompts are refused
# first: the longest quarter of prompts got a third of its share, and gets half of it now.
OWN_SHARE: Final = 0.75
SURELY_LATE: Final = 0.95
# When it would be sent: waited, and still to do there, beside the deadline.
LATE: Final = 0.9
# Hints are longer than a second and shorter than what SDKs obey, and spread.
HINT_MIN_S: Final = 1.0
HINT_MAX_S: Final = 59.0


class Refusal:
    """The rule for one pool. It knows since when requests of each class or a higher one wait."""

    __slots__ = ("_empty_at_s", "_rng", "total")

    def __init__(self, classes: int, rng: Random) -> None:
        self._rng = rng
        self.total = 0  # how many were refused
        self._empty_at_s = [0.0] * classes  # when nothing of this class or a higher one waited

    def reshape(self, classes: int) -> None:
        """There are other classes now."""
        self._empty_at_s = [max(self._empty_at_s)] * classes

    def slept(self, time_s: float) -> None:
        """The process did not run for this long: nobody has waited meanwhile."""
        self._empty_at_s = [each + time_s for each in self._empty_at_s]

    def look(self, generals: list[int], now_s: float) -> None:
        """Note where nothing waits.

        `generals`: in each class, how many wait that every backend may serve.
        """
        for rank, waiting in enumerate(generals):
            if waiting:
                return
            self._empty_at_s[rank] = now_s

    def allowed_s(self, rank: int, deadline_s: float, generals: list[int], now_s: float) -> float:
        """How late a first token may be predicted to come. `generals` as for `look`."""
        standing = False
        if rank > 0 and now_s - self._empty_at_s[rank] > STANDING_S:
            standing = sum(generals[: rank + 1]) > 0
        return (STANDING_SHARE if standing else SHARE) * deadline_s

    def check(self, ticket: Ticket, seconds: float, own_s: float, allowed_s: float) -> None:
        """Raises Refused if a first token after `seconds` is too late. `own_s`: its own prefill."""
        beside = OWN_SHARE if ticket.impatient else 1.0
        if seconds - beside * own_s > allowed_s:
            raise self.refused(ticket, seconds)
        if _counted_s(ticket, seconds, own_s) > SURELY_LATE * ticket.deadline_s:
            raise self.refused(ticket, seconds)

    def check_sending(self, ticket: Ticket, seconds: float, own_s: float) -> None:
        """The same when it would be sent. `seconds`: waited, and still to do there."""
        if _counted_s(ticket, seconds, own_s) > LATE * ticket.deadline_s:
            raise self.refused(ticket, seconds)

    def refused(self, ticket: Ticket, seconds: float) -> Refused:
        """The refusal, with a time to come back. In a dry run that is the least of such times."""
        self.total += not ticket.dry
        hint_s = max(HINT_MIN_S, seconds - SHARE * ticket.deadline_s)
        spread = 1.0 if ticket.dry else self._rng.uniform(1.0, 2.0)
        return Refused(min(HINT_MAX_S, hint_s * spread), seconds)


def _counted_s(ticket: Ticket, seconds: float, own_s: float) -> float:
    """How much of the time until its first token counts for its deadline."""
    return seconds if ticket.impatient else seconds - own_s
