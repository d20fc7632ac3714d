"""How many backends one flow takes for long, and giants of all flows.

A giant closes its backend. On a long prompt, or a list of prompts, an engine works for seconds, and
on no other meanwhile. So giants have a quarter of the backends that serve their model. While others
generate, one flow leaves a quarter of these free of its giants and long prompts.
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

    __slots__ = ("_able", "_found", "_found_s", "_rooms", "company", "members")

    def __init__(self, rooms: dict[Backend, Room]) -> None:
        """`rooms`: all of a pool."""
        self._rooms = rooms
        self._found: dict[tuple[Flow, str | None], bool] = {}
        self._able: dict[str | None, list[Backend]] = {}
        self._found_s = 0.0
        self.company = Company()
        self.members: tuple[Backend, ...] = ()

    def follow(self, members: tuple[Backend, ...]) -> None:
        """These are in the pool now."""
        self.members = members
        self._found.clear()
        self._able.clear()

    def renew(self) -> None:
        """Who takes which backends may have changed."""
        self._found.clear()

    def has_enough(self, flow: Flow, model: str | None, now_s: float) -> bool:
        """Whether this flow may take no more backends for long. A flow that is alone takes all."""
        return self.company.others(flow, now_s) and self._is_full(flow, model, now_s)

    def has_giants(self, model: str | None, now_s: float) -> bool:
        """Whether giants have as many backends as they may have."""
        return self._is_full(NO_FLOW, model, now_s)

    def _is_full(self, flow: Flow, model: str | None, now_s: float) -> bool:
        self._at(now_s)
        found = self._found.get((flow, model))
        if found is None:
            found = self._found[flow, model] = self._look(flow, model, now_s)
        return found

    def _look(self, flow: Flow, model: str | None, now_s: float) -> bool:
        """Whether this flow has as many backends as it may have. NO_FLOW: whether giants have."""
        able = [self._rooms[each] for each in self._serving(model, now_s)]
        quarter = max(1, len(able) // QUARTER)
        if len(able) < 2:
            return False
        if flow is NO_FLOW:
            return sum([room.giants for room in able]) >= quarter
        return sum([flow in room.taken for room in able]) >= len(able) - quarter

    def _serving(self, model: str | None, now_s: float) -> list[Backend]:
        """Who can serve this model."""
        self._at(now_s)
        found = self._able.get(model)
        if found is None:
            found = [each for each in self.members if each.can_serve and each.serves(model)]
            self._able[model] = found
        return found

    def _at(self, now_s: float) -> None:
        if now_s != self._found_s:
            self._found.clear()
            self._able.clear()
            self._found_s = now_s

    def is_closed(self, backend: Backend, model: str | None, now_s: float) -> bool:
        """Whether it is left to a giant: others serve this model."""
        return self._has_giant(backend) and self._is_shared(backend, model, now_s)

    def is_closed_to_all(self, backend: Backend) -> bool:
        """The same, whatever the model: one other serves all of its models."""
        return self._has_giant(backend) and self._has_stand_in(backend)

    def _has_giant(self, backend: Backend) -> bool:
        """One whose client does not read does not count: it may be there for as long as that client
        likes."""
        room = self._rooms.get(backend)
        if room is None or not room.giants:
            return False
        for lease, ticket in room.tickets.items():  # noqa: SIM110 - compiled: no generator
            if ticket.giant and not lease.held_up:
                return True
        return False

    def _is_shared(self, backend: Backend, model: str | None, now_s: float) -> bool:
        others = self._serving(model, now_s)
        return len(others) > (backend in others)

    def _has_stand_in(self, backend: Backend) -> bool:
        for each in self.members:
            if each is not backend and each.can_serve and _serves_all_of(each, backend):
                return True
        return False


def _serves_all_of(backend: Backend, other: Backend) -> bool:
    if backend.models is None or other.models is None:
        return backend.models is None
    return backend.models.keys() >= other.models.keys()
