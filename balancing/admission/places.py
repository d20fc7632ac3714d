"""The backends of one pool: which of them have room for what waits."""

from collections.abc import Collection, Sequence

from penstock.balancing.admission.backfill import Backfill
from penstock.balancing.admission.crowding import Crowding
from penstock.balancing.admission.lack import Lack
from penstock.balancing.admission.reserve import Reserve
from penstock.balancing.admission.room import Room
from penstock.balancing.admission.slots import kept_places
from penstock.balancing.admission.spread import Spread
from penstock.balancing.admission.ticket import Flow, Ticket
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.lease import Lease
from penstock.balancing.look import Look
from penstock.balancing.occupancy import Occupancy


class Places:
    """The rooms at the backends of one pool. `members`: those that are in it now."""

    __slots__ = (
        "_flows",
        "_max_requests",
        "_occupancy",
        "_window_s",
        "backfill",
        "crowding",
        "members",
        "reserve",
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
        self.spread = Spread()  # of the answers of all flows
        self.reserve = Reserve()
        self.members: tuple[Backend, ...] = ()
        self.rooms: dict[Backend, Room] = {}
        self.crowding = Crowding(self.rooms)

    def room_of(self, backend: Backend) -> Room:
        room = self.rooms.get(backend)
        if room is None:
            room = self.rooms[backend] = Room(
                backend, self.spread, self._window_s, self._flows, self.reserve
            )
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
        self.crowding.follow(backends)
        for backend, room in list(self.rooms.items()):
            room.window_s = window_s
            if backend not in backends and not room.tickets and not room.wanted:
                del self.rooms[backend]
                backend.occupancy = None

    def charge(self, lease: Lease, ticket: Ticket, tokens: float, now_s: float) -> None:
        """Its flow and its class are given so many tokens more, or fewer if negative."""
        ticket.charged_tokens += tokens
        ticket.flow.charge(tokens, now_s)
        if needs_room(lease.ask):
            self.reserve.take(ticket.rank, tokens, lease.began_s, now_s)

    def may_grow(self, ticket: Ticket, opened: Collection[Backend], now_s: float) -> bool:
        """Whether its flow may have one more such answer at one of these."""
        for backend in opened:
            cache = self.rooms[backend].cache
            if cache.may_grow(ticket.flow, ticket.ask, now_s, cache.left_share(ticket, now_s)):
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

        A giant has its backend for itself, as far as there are others. The engine serves its
        choices first come, first served: who came after would wait for all of them.
        """
        room, crowding = self.room_of(backend), self.crowding
        if self.full or self._spares_none(backend, ticket.flow):
            return Lack.REQUESTS
        generates = ask.response_id is None and ask.engine
        if room.giants and generates and crowding.is_closed(backend, ask.model, now_s):
            return Lack.GIANT
        giant = room.cache.is_giant(ticket.flow, ask)
        if giant and crowding.has_giants(ask.model, now_s):
            return Lack.GIANTS
        lack = room.lack(ticket, ask, now_s) if needs_room(ask) else room.lack_beside(ask)
        if lack is None and (giant or room.is_long(ask)) and ticket.flow not in room.taken:
            enough = crowding.has_enough(ticket.flow, ask.model, now_s)
            lack = Lack.LONG if enough else None
        if lack is None and room.spares_streams(ticket.rank, ask, now_s):
            return Lack.STREAMS
        if not needs_room(ask):
            return lack
        if lack is None and len(self._flows) > 1 and room.spares_none(ticket.flow):
            return Lack.SEQUENCES
        if lack is None and self.backfill.kept:
            step_s = room.cache.step_s
            if not self.backfill.admits(backend, ticket, ask, step_s, now_s):
                return Lack.TURN
        return lack

    def not_taken(
        self, backends: Sequence[Backend], flow: Flow, model: str | None, now_s: float
    ) -> Sequence[Backend]:
        """Those among these that no giant has, and no long prompts of another flow, if any.

        A request of this flow for this model does not wait behind what is queued at the rest.
        """
        closed = self.crowding.is_closed
        open_ = [each for each in backends if not closed(each, model, now_s)]
        free = [each for each in open_ if not self.room_of(each).is_taken_beside(flow)]
        return free or open_ or backends

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
        return room.takes_prompts() and not self.crowding.is_closed_to_all(room.backend)

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


def _requests(backend: Backend) -> int:
    return backend.own.requests
