"""How many backends one flow takes for long, and giants of all flows.

A giant closes its backend. On a long prompt, or a list of prompts, an engine works for seconds, and
on no other meanwhile. So giants have a quarter of the backends that serve their model. Of all these
ways to take one for long, a flow leaves a quarter to others, while others generate.
"""

from typing import Final

from penstock.balancing.admission.company import Company
from penstock.balancing.admission.room import Room
from penstock.balancing.admission.ticket import NO_FLOW, Flow
from penstock.balancing.backend import Backend

# One of so many backends, but at least one.
QUARTER: Final = 4


class Crowding:
    """What was found at one moment. It is asked for each idle backend and each look at a request,
    and is the same for all of them."""

    __slots__ = ("_found", "_found_s", "_rooms", "company", "members")

    def __init__(self, rooms: dict[Backend, Room]) -> None:
        """`rooms`: all of a pool."""
        self._rooms = rooms
        self._found: dict[tuple[Flow, str | None], bool] = {}
        self._found_s = 0.0
        self.company = Company()
        self.members: tuple[Backend, ...] = ()

    def renew(self) -> None:
        """Who takes which backends has changed."""
        self._found.clear()

    def has_enough(self, flow: Flow, model: str | None, now_s: float) -> bool:
        """Whether this flow may take no more backends for long. A flow that is alone takes all."""
        return self.company.others(flow, now_s) and self._is_full(flow, model, now_s)

    def has_giants(self, model: str | None, now_s: float) -> bool:
        """Whether giants have as many backends as they may have."""
        return self._is_full(NO_FLOW, model, now_s)

    def _is_full(self, flow: Flow, model: str | None, now_s: float) -> bool:
        if now_s != self._found_s:
            self._found.clear()
            self._found_s = now_s
        found = self._found.get((flow, model))
        if found is None:
            found = self._found[flow, model] = self._count(flow, model)
        return found

    def _count(self, flow: Flow, model: str | None) -> bool:
        """With NO_FLOW whether there are enough giants."""
        able = [self._rooms[each] for each in self.members if each.can_serve and each.serves(model)]
        quarter = max(1, len(able) // QUARTER)
        if len(able) < 2:
            return False
        if flow is NO_FLOW:
            return sum([room.giants for room in able]) >= quarter
        return sum([flow in room.taken for room in able]) >= len(able) - quarter

    def is_closed(self, backend: Backend) -> bool:
        """Whether it is left to a giant: others serve the same models.

        A giant whose client does not read closes none: it would stay closed for as long as that
        client likes.
        """
        room = self._rooms.get(backend)
        if room is None or not room.giants or not self._has_stand_in(backend):
            return False
        for lease, ticket in room.tickets.items():  # noqa: SIM110 - compiled: no generator
            if ticket.giant and not lease.held_up:
                return True
        return False

    def _has_stand_in(self, backend: Backend) -> bool:
        for each in self.members:
            if each is not backend and each.can_serve and _serves_all_of(each, backend):
                return True
        return False


def _serves_all_of(backend: Backend, other: Backend) -> bool:
    if backend.models is None or other.models is None:
        return backend.models is None
    return backend.models.keys() >= other.models.keys()
