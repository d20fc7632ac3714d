"""The backends of one pool: which of them have room for what waits."""

from collections.abc import Collection, Sequence
from typing import Final

from penstock.balancing.admission.backfill import Backfill
from penstock.balancing.admission.company import Company
from penstock.balancing.admission.lack import Lack
from penstock.balancing.admission.room import Room, kept_places
from penstock.balancing.admission.spread import Spread
from penstock.balancing.admission.ticket import Flow, Ticket
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.gate import Look
from penstock.balancing.occupancy import Occupancy

# At most one of four backends has a giant, but at least one may.
GIANTS_SHARE: Final = 4


class Places:
    """The rooms at the backends of one pool. `members`: those that are in it now."""

    __slots__ = (
        "_flows",
        "_max_requests",
        "_occupancy",
        "_window_s",
        "backfill",
        "company",
        "members",
        "rooms",
        "spread",
    )

    def __init__(self, occupancy: Occupancy | None = None, flows: Collection[str] = ()) -> None:
        """`occupancy`: who is told what becomes of requests there. None: a dry run. `flows`: all
        that have come to the pool."""
        self._flows = flows
        self._occupancy = occupancy
        self._window_s: float | None = None
        self._max_requests: int | None = None  # of the whole pool
        self.backfill = Backfill()
        self.company = Company()
        self.spread = Spread()  # of the answers of all flows
        self.members: tuple[Backend, ...] = ()
        self.rooms: dict[Backend, Room] = {}

    def room_of(self, backend: Backend) -> Room:
        room = self.rooms.get(backend)
        if room is None:
            room = self.rooms[backend] = Room(backend, self.spread, self._window_s, self._flows)
            if self._occupancy is not None:
                backend.occupancy = self._occupancy
        return room

    def follow(
        self, backends: tuple[Backend, ...], max_requests: int | None, window_s: float | None
    ) -> None:
        """These are in the pool now. Others are forgotten when they have no requests."""
        self.members, self._max_requests, self._window_s = backends, max_requests, window_s
        for backend in backends:
            self.room_of(backend)
        for backend, room in list(self.rooms.items()):
            room.window_s = window_s
            if backend not in backends and not room.tickets and not room.wanted:
                del self.rooms[backend]
                backend.occupancy = None

    def may_grow(self, ticket: Ticket, opened: Collection[Backend], now_s: float) -> bool:
        """Whether its flow may have one more such answer at one of these."""
        for backend in opened:
            cache = self.rooms[backend].cache
            if cache.may_grow(ticket.flow, ticket.ask, now_s, ticket.reserve):
                return True
        return False

    def takes(self, backend: Backend, ticket: Ticket, ask: Ask, now_s: float) -> bool:
        """Whether it may be sent there now."""
        lack = self.lack(backend, ticket, ask, now_s)
        if lack is not None and not ticket.dry:
            self.rooms[backend].cache.found(lack, ticket.flow, ask, now_s)
            if ticket.wanted is None or ticket.wanted is backend:
                ticket.lack = lack
        return lack is None

    def lack(self, backend: Backend, ticket: Ticket, ask: Ask, now_s: float) -> Lack | None:
        """What there is not at this backend, for it to be sent there now. Changes nothing.

        A giant has its backend for itself, as far as there are others, and giants have a quarter of
        the backends. The engine serves their choices first come, first served: who came after
        would wait for all of them.
        """
        room = self.room_of(backend)
        if self.full or self._spares_none(backend, ticket.flow):
            return Lack.REQUESTS
        if self._closed(room) and ask.response_id is None and ask.engine:
            return Lack.GIANT
        if self._is_one_too_many(room, ticket.flow, ask):
            return Lack.GIANTS
        lack = room.lack(ticket, ask, now_s) if needs_room(ask) else room.lack_beside(ask)
        if lack is None and self._crowds_out(room, ticket.flow, ask, now_s):
            return Lack.GIANTS
        if not needs_room(ask):
            return lack
        if lack is None and len(self._flows) > 1 and room.spares_none(ticket.flow):
            return Lack.SEQUENCES
        if lack is None and self.backfill.kept:
            step_s = room.cache.step_s
            if not self.backfill.admits(backend, ticket, ask, step_s, now_s):
                return Lack.TURN
        return lack

    def _crowds_out(self, room: Room, flow: Flow, ask: Ask, now_s: float) -> bool:
        """Whether it would take a backend for long, and its flow would leave others too few.

        A giant closes its backend. On a long prompt, or a list of them, an engine works for
        seconds, and on no other meanwhile. So while others generate, one flow takes all but
        `_giants_most` backends this way. A flow that is alone takes all.
        """
        if flow in room.taken or not (room.is_long(ask) or room.cache.is_giant(flow, ask)):
            return False
        able = self.able
        if able < 2 or not self.company.others(flow, now_s):
            return False
        taken = sum([flow in of.taken for each, of in self.rooms.items() if each.can_serve])
        return taken >= able - _giants_most(able)

    def _is_one_too_many(self, room: Room, flow: Flow, ask: Ask) -> bool:
        """Whether it is a giant, and giants have as many backends as they may have."""
        if not room.cache.is_giant(flow, ask):
            return False
        able = self.able
        giants = sum([each.giants for each in self.rooms.values()])
        return able >= 2 and giants >= _giants_most(able)

    def not_taken(self, backends: Sequence[Backend], flow: Flow) -> Sequence[Backend]:
        """Those among these that no giant has, and no long prompts of another flow, if any.

        A request of this flow does not wait behind what is queued at the rest.
        """
        open_ = [each for each in backends if not self._closed(self.room_of(each))]
        free = [each for each in open_ if not self.room_of(each).is_taken_beside(flow)]
        return free or open_ or backends

    def _closed(self, room: Room) -> bool:
        """Whether it is left to a giant: others can serve.

        A giant whose client does not read closes none: it would stay closed for as long as that
        client likes.
        """
        if not room.giants or self.able < 2:
            return False
        for lease, ticket in room.tickets.items():  # noqa: SIM110 - compiled: no generator
            if ticket.giant and not lease.held_up:
                return True
        return False

    @property
    def able(self) -> int:
        """How many backends can serve."""
        return sum([backend.can_serve for backend in self.members])

    def opened(self) -> frozenset[Backend]:
        """Those that take a prompt now. Whether its answer fits is seen for each request."""
        if self.full:
            return frozenset()
        return frozenset(
            [
                backend
                for backend in self.members
                if backend.can_serve and self._opens(self.rooms[backend])
            ]
        )

    def takes_prompts(self) -> bool:
        """Whether any backend does."""
        if self.full:
            return False
        for backend in self.members:
            if backend.can_serve and self._opens(self.rooms[backend]):
                return True
        return False

    def _opens(self, room: Room) -> bool:
        return room.takes_prompts() and not self._closed(room)

    @property
    def full(self) -> bool:
        """Whether the pool has all the requests that it may have."""
        if self._max_requests is None:
            return False
        return sum([each.own.requests for each in self.members]) >= self._max_requests

    def beside(self, look: Look, ticket: Ticket, now_s: float) -> Backend | None:
        """Where one may be sent that needs no room in a cache."""
        if self.full:
            return None
        for backend in [look.chosen, *sorted(look.fit, key=_requests)]:
            lack = self.lack(backend, ticket, look.ask, now_s)
            if lack is None:
                return backend
            if backend is look.chosen and not ticket.dry:
                ticket.lack = lack
        return None

    def _spares_none(self, backend: Backend, flow: Flow) -> bool:
        """Whether the last places among the requests are left to others: this flow has some."""
        if len(self._flows) < 2:
            return False
        if backend.max_requests is not None:
            kept = kept_places(backend.max_requests)
            if backend.own.requests >= backend.max_requests - kept:
                return self.room_of(backend).requests_of(flow) >= kept
        if self._max_requests is not None:
            kept = kept_places(self._max_requests)
            if sum([each.own.requests for each in self.members]) >= self._max_requests - kept:
                return sum([room.requests_of(flow) for room in self.rooms.values()]) >= kept
        return False

    @property
    def deserted(self) -> bool:
        """Whether no backend of the pool can serve, whatever the model."""
        for backend in self.members:  # noqa: SIM110 - compiled: no generator
            if backend.can_serve:
                return False
        return True

    def nobody_serves(self, ticket: Ticket) -> bool:
        """Whether no backend can serve, whatever the model, or only those that have failed it."""
        for backend in self.members:
            if backend.can_serve and backend not in ticket.tried:
                return False
        return True


def needs_room(ask: Ask) -> bool:
    """Whether it may have to wait for room. What generates nothing is never held back for that."""
    return ask.engine and ask.generates


def _giants_most(able: int) -> int:
    """How many of the backends giants have."""
    return max(1, able // GIANTS_SHARE)


def _requests(backend: Backend) -> int:
    return backend.own.requests
