"""A backend that is kept for one long prompt until enough of its KV cache is free.

Small requests find room before a long one does. Without this they would pass it for as long as they
come. So the next one in its turn that has waited for a while and lacks room in a cache gets one
backend. Meanwhile only those may go there that should have ended by then, and those of a higher
class (backfilling, as in the scheduler EASY, Lifka 1995).

A backend that empties does less work, so no more than a quarter of them are kept. The only one of a
pool is kept for a short time only: everybody waits for that.
"""

from typing import Final

from penstock.balancing.admission.ticket import Ticket
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend

# A backend is kept once the prompt has waited for a tenth of its deadline, or for 3 s if that is
# less.
WAITED_SHARE: Final = 0.1
DEADLINE_MAX_S: Final = 30.0
KEPT_SHARE: Final = 4
# It is kept only if there should be room within this time, and no longer: what is expected of
# answers may be wrong.
KEPT_S: Final = 15.0
KEPT_ALONE_S: Final = 5.0


class Kept:
    """One backend that is kept. `ready_s`: when it should have room. `until_s`: no longer."""

    __slots__ = ("ready_s", "ticket", "until_s")

    def __init__(self, ticket: Ticket, ready_s: float, until_s: float) -> None:
        self.ticket = ticket
        self.ready_s = ready_s
        self.until_s = until_s


class Backfill:
    """The backends of one pool that are kept."""

    __slots__ = ("kept",)

    def __init__(self) -> None:
        self.kept: dict[Backend, Kept] = {}

    def wants(self, ticket: Ticket, now_s: float) -> bool:
        """Whether a backend should be kept for one that is next and finds no room in a cache."""
        if ticket.kept_before:
            return False
        waited_s = ticket.waited_s(now_s)
        return waited_s >= WAITED_SHARE * min(DEADLINE_MAX_S, ticket.deadline_s)

    def keep(
        self, backend: Backend, ticket: Ticket, within_s: float, able: int, now_s: float
    ) -> None:
        """Keep it, if that is worth it. `within_s`: when it should have room. `able`: how many
        backends can serve."""
        most_s = KEPT_S if able > 1 else KEPT_ALONE_S
        left_s = ticket.deadline_s - ticket.waited_s(now_s)
        if within_s > min(most_s, left_s) or backend in self.kept:
            return
        if len(self.kept) >= max(1, able // KEPT_SHARE):
            return
        ticket.kept_before = True
        self.kept[backend] = Kept(ticket, now_s + within_s, now_s + most_s)

    def release(self, ticket: Ticket) -> None:
        """It waits no more."""
        for backend, kept in list(self.kept.items()):
            if kept.ticket is ticket:
                del self.kept[backend]

    def expire(self, now_s: float) -> None:
        """Keep none for too long, or that cannot serve."""
        for backend, kept in list(self.kept.items()):
            if now_s > kept.until_s or not backend.can_serve:
                del self.kept[backend]

    def admits(
        self, backend: Backend, ticket: Ticket, ask: Ask, step_s: float, now_s: float
    ) -> bool:
        """Whether a request may go there. `step_s`: the time of a token of each stream."""
        kept = self.kept.get(backend)
        if kept is None or kept.ticket is ticket or ticket.rank < kept.ticket.rank:
            return True
        steps = ticket.flow.expect(ask) / (ask.prompts * ask.choices)
        return now_s + steps * step_s <= kept.ready_s
