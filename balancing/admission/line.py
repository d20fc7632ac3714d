"""The line before one pool: who passes at once, who waits, who is refused.

The policy chooses among all backends. If its choice has no room, the request waits, and is chosen
for again when that may have changed. Waiting has its price too: a place with room is taken if it
costs little more than the best one, and the nearer the deadline, the more that may be. The time
until a full cache has room counts as cost, too.
A backend with slow streams is never such a place. Little is queued there, but it has much to
decode.
"""

from collections.abc import Callable, Collection, Sequence
from itertools import islice
from math import inf
from random import Random
from typing import Final

from penstock.balancing.admission.pace import Pace
from penstock.balancing.admission.prediction import learn, own_s, predict
from penstock.balancing.admission.queue import ANSWER_WEIGHT, SEEN_MAX, Queue, is_servable, servable
from penstock.balancing.admission.refusal import LATE, Refusal
from penstock.balancing.admission.room import Room
from penstock.balancing.admission.spread import Spread
from penstock.balancing.admission.ticket import Flow, Refused, Ticket
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.gate import Look
from penstock.balancing.lease import Lease
from penstock.balancing.occupancy import Occupancy
from penstock.balancing.queued_prompts import QueuedPrompts

# A backend with room may cost a tenth more than the best one. That share grows with the wait, by a
# half until the deadline or until 30 s, whichever is first. Places that cost more are worse than
# waiting: long prompts then go everywhere, and all streams become slower. On a published trace with
# long conversations, at 0.95 of capacity, answers took 28 % longer if a tenth was added for each
# second, and if a full cache made any place good enough. Without what is added, the longest quarter
# of prompts got less than half of its part above capacity ("Detours" in
# bench/history/2026-11-admission.md).
DETOUR: Final = 0.1
DETOUR_LATE: Final = 0.5
DETOUR_S: Final = 30.0
# At most one of four backends has a giant, but at least one may.
GIANTS_SHARE: Final = 4
# How often the streams are looked at while requests wait.
SAMPLE_S: Final = 0.1
# No detour to streams with a longer time between tokens than this.
GAP_MAX_S: Final = 0.06
# Lower classes pass nothing once one of a higher class has waited for so long.
YIELD_S: Final = 0.25


class Line(Occupancy):
    """One pool's waiting requests, the room at its backends, and what the waits teach."""

    __slots__ = (
        "_futile",
        "_futile_s",
        "_on_change",
        "_resting",
        "_sampled_s",
        "_spread",
        "members",
        "pace",
        "queue",
        "refusal",
        "rooms",
    )

    def __init__(
        self, shares: tuple[float, ...], rng: Random, on_change: Callable[[], None]
    ) -> None:
        """`shares`: the least share of each class, the highest first."""
        self.refusal = Refusal(len(shares), rng)
        self._on_change = on_change
        self._spread = Spread()  # of the answers of all flows
        self.pace = Pace(len(shares))
        self._sampled_s = 0.0
        self.queue = Queue(shares)
        self.rooms: dict[Backend, Room] = {}
        self.members: tuple[Backend, ...] = ()  # the backends that are in the pool now
        # The last wake that sent nothing. Until then another finds the same, with these open.
        self._futile_s = 0.0
        self._futile: frozenset[Backend] = frozenset()
        self._resting: dict[tuple[Flow, int], float] = {}  # until when flows are looked at last

    def room_of(self, backend: Backend) -> Room:
        room = self.rooms.get(backend)
        if room is None:
            room = self.rooms[backend] = Room(backend, self._spread)
            backend.occupancy = self
        return room

    def keep(self, backends: tuple[Backend, ...]) -> None:
        """These are in the pool now. Others are forgotten when they have no requests."""
        self.members = backends
        for backend in backends:
            self.room_of(backend)
        for backend, room in list(self.rooms.items()):
            if backend not in backends and not room.tickets:
                del self.rooms[backend]
                backend.occupancy = None

    # What comes --------------------------------------------------------------------------------

    def may_pass(self, ticket: Ticket, now_s: float) -> bool:
        """Whether a new request may be sent while others wait: it would be looked at first."""
        for higher in range(ticket.rank):
            if self.queue.backlogs[higher]:
                return False
        for lower in range(ticket.rank + 1, len(self.queue.backlogs)):
            if self.queue.is_due(lower):
                return False
        flow = ticket.flow
        if flow.queues[ticket.rank]:
            return False
        served = self.queue.served_if_it_waits(flow)
        for other in self.queue.backlogs[ticket.rank]:  # noqa: SIM110 - compiled: no generator
            if other.served < served:
                return False
        return True

    def wait(self, ticket: Ticket, look: Look, now_s: float) -> None:
        """Let it wait. Raises Refused if its first token would come too late."""
        first = bool(ticket.tried)  # its client has waited already
        self._look(now_s)
        if not self.queue.waiting:
            self._sampled_s = now_s
            for room in self.rooms.values():
                room.begin_samples()
        uncached = look.ask.prompt_tokens - look.chosen.cache.cached_tokens(look.ask)
        ticket.tokens = max(1, int(uncached * look.ask.likely))
        ticket.answer_tokens = ticket.flow.expect(look.ask)
        ticket.only = look.chosen if look.bound else None
        # One that some backends cannot serve tells nothing of the pool when it waits.
        ticket.general = not look.bound and len(look.fit) + len(ticket.tried) >= self._able
        flow = ticket.flow
        ahead = 0.0 if first else self.queue.ahead_tokens(flow, ticket.rank, ticket.tokens)
        speeds = [each.prefill_speed.work_per_s for each in look.fit]
        queued = sum([each.queued_prefill_tokens for each in look.fit])
        full_s = self.room_of(look.chosen).cache.likely_wait_s(ticket, look.ask, now_s)
        seconds = predict(ticket, ahead, queued, full_s, speeds, self.pace)
        seconds += now_s - ticket.since_s
        self.refusal.check(ticket, seconds, own_s(ticket, speeds, self.pace), now_s)
        self.queue.add(ticket, first=first)
        self._futile_s = 0.0  # there may be room for this one
        self.pace.busy = self.queue.general() > 0

    def reshape(self, shares: tuple[float, ...], ranks: Sequence[int]) -> None:
        """Take other classes. `ranks`: for each old one, the class that its requests have now."""
        waiting = self.queue.take_all()
        tickets = [ticket for room in self.rooms.values() for ticket in room.tickets.values()]
        for ticket in tickets + waiting:
            ticket.rank = ranks[ticket.rank]
        self.queue.reshape(shares)
        for ticket in waiting:
            self.queue.add(ticket)
        self.refusal.reshape(len(shares))
        self.pace.reshape(len(shares))

    def leave(self, ticket: Ticket, now_s: float) -> None:
        """It waits no more: it is sent, refused, or its client has left."""
        self.pace.look(now_s)
        self.queue.remove(ticket)
        self._look(now_s)
        self.pace.busy = self.queue.general() > 0

    def slept(self, time_s: float) -> None:
        """The process did not run for this long: nobody has waited meanwhile."""
        self.pace.slept(time_s)
        self.refusal.slept(time_s)
        self._sampled_s += time_s

    def _look(self, now_s: float) -> None:
        """Before something begins or ends to wait: look at the time."""
        self.pace.look(now_s)
        self.refusal.look(self.queue.generals, now_s)

    def sent(self, ticket: Ticket, lease: Lease) -> None:
        """It is sent. Its flow is charged what it should take; `ended` corrects that."""
        self.room_of(lease.backend).add(lease, ticket)
        ticket.tokens = ticket.tokens or lease.queued_tokens
        self.queue.sent(ticket)
        ticket.charged_tokens = lease.queued_tokens + ANSWER_WEIGHT * ticket.answer_tokens
        ticket.flow.charge(ticket.charged_tokens)

    # What the leases tell ----------------------------------------------------------------------

    def prefilled(self, prompts: QueuedPrompts, now_s: float) -> None:
        assert isinstance(prompts, Lease)
        room = self.rooms[prompts.backend]
        room.prefilled(prompts)
        if self.queue.waiting:
            self._on_change()
        ticket = room.tickets.get(prompts)
        if ticket is not None:
            tokens = prompts.ask.prompt_tokens - prompts.cached_tokens
            self.pace.count(tokens, ticket.rank, now_s)
            learn(ticket, now_s - ticket.since_s)

    def ended(self, prompts: QueuedPrompts, now_s: float) -> None:
        assert isinstance(prompts, Lease)
        room = self.rooms[prompts.backend]
        ticket = room.remove(prompts, now_s)
        if self.queue.waiting:
            self._on_change()
            if room.cache.short:
                room.cache.short, self._futile_s = False, 0.0
        if ticket is None:
            return
        if prompts.whole and prompts.ask.stream and prompts.ask.generates:
            choices = prompts.ask.prompts * prompts.ask.choices
            self._spread.observe(ticket.flow.answered(max(1, prompts.generated_tokens // choices)))
        taken = prompts.taken_tokens + ANSWER_WEIGHT * prompts.generated_tokens
        if not prompts.whole and not prompts.ask.stream:
            unseen = prompts.taken_tokens + ANSWER_WEIGHT * prompts.unseen_tokens(now_s)
            taken = max(taken, ticket.charged_tokens, unseen)
        ticket.flow.charge(taken - ticket.charged_tokens)
        ticket.charged_tokens = 0.0

    # What waits --------------------------------------------------------------------------------

    def place(self, ticket: Ticket, look: Look, now_s: float) -> Backend | None:
        """Where it may be sent now: to the choice, or on a detour. None: it waits on.

        Raises Refused if it would come too late there.
        """
        chosen: Backend | None = look.chosen
        if not self.takes(look.chosen, ticket, look.ask, now_s):
            chosen = self._detour(ticket, look, now_s)
        if chosen is None:
            return None
        speed = chosen.prefill_speed
        own = (ticket.tokens or look.ask.prompt_tokens) * speed.work_s
        before = chosen.wait_work(now_s) * speed.work_s
        seconds = now_s - ticket.since_s + before + own + speed.step_s
        self.refusal.check_sending(ticket, seconds, own)
        return chosen

    def takes(self, backend: Backend, ticket: Ticket, ask: Ask, now_s: float) -> bool:
        """Whether it may be sent there now.

        A giant has its backend for itself, as far as there are others, and giants have a quarter of
        the backends. The engine serves their choices first come, first served: who came after
        would wait for all of them.
        """
        room = self.room_of(backend)
        if self._closed(room) and ask.response_id is None:
            return False
        if room.cache.is_giant(ticket.flow, ask):
            giants = sum([each.giants for each in self.rooms.values()])
            if giants >= max(1, self._able // GIANTS_SHARE):
                return False
        return room.takes(ticket, ask, now_s)

    def _closed(self, room: Room) -> bool:
        """Whether it is left to a giant: others can serve."""
        return room.giants > 0 and self._able > 1

    @property
    def _able(self) -> int:
        """How many backends can serve."""
        return sum([backend.can_serve for backend in self.members])

    def _detour(self, ticket: Ticket, look: Look, now_s: float) -> Backend | None:
        """The cheapest place with room that is not far dearer than the best one."""
        places = [look.chosen]
        for backend in look.fit:
            room = self.room_of(backend)
            if backend is look.chosen or room.gap_s > GAP_MAX_S:
                continue
            if self.takes(backend, ticket, look.ask, now_s):
                places.append(backend)
        if len(places) == 1:
            return None
        costs = look.pool.policy.costs(places, look.ask, now_s)
        best, least = 0, inf
        for place in range(1, len(places)):
            if costs[place] < least:
                best, least = place, costs[place]
        late = (now_s - ticket.since_s) / min(DETOUR_S, ticket.deadline_s)
        most = costs[0] * (1.0 + DETOUR + DETOUR_LATE * late)
        room = self.room_of(look.chosen)
        if look.pool.policy.costs_seconds and room.takes_prompts():  # so its cache is full
            most += room.cache.sure_wait_s(ticket, look.ask, now_s)
        if room.giants:  # which may be there for minutes
            most = inf
        return places[best] if least <= most else None

    def must_yield(self, rank: int, opened: Collection[Backend], now_s: float) -> bool:
        """Whether one of a higher class waits that could be sent, and too long to be passed."""
        for higher in range(rank):
            for flow in self.queue.backlogs[higher]:
                oldest = next(iter(flow.queues[higher]))
                if now_s - oldest.since_s > YIELD_S and servable(flow, higher, 1, opened):
                    return True
        return False

    def stranded(self) -> list[Ticket]:
        """Those among the first of each flow that no backend can serve, however empty it is."""
        able = [backend for backend in self.members if backend.can_serve]
        found: list[Ticket] = []
        for rank, backlog in enumerate(self.queue.backlogs):
            for flow in backlog:
                seen = islice(flow.queues[rank], SEEN_MAX)
                found += [ticket for ticket in seen if not is_servable(ticket, able)]
        return found

    def open_backends(self) -> frozenset[Backend]:
        """Those that take a prompt now. Whether its answer fits is seen for each request."""
        return frozenset(
            [
                backend
                for backend in self.members
                if backend.can_serve and self._opens(self.rooms[backend])
            ]
        )

    def takes_prompts(self) -> bool:
        """Whether any backend does."""
        for backend in self.members:
            if backend.can_serve and self._opens(self.rooms[backend]):
                return True
        return False

    def _opens(self, room: Room) -> bool:
        return room.takes_prompts() and not self._closed(room)

    @property
    def deserted(self) -> bool:
        """Whether no backend can serve: nobody need wait for that."""
        for backend in self.members:  # noqa: SIM110 - compiled: no generator
            if backend.can_serve:
                return False
        return True

    def rest(self, flow: Flow, rank: int, until_s: float) -> None:
        """One of its requests found no room. Until then others of its class are looked at first."""
        self._resting[flow, rank] = until_s

    def resting(self, rank: int, now_s: float) -> set[Flow]:
        """The flows of a class that are looked at last."""
        if not self._resting:
            return set()
        self._resting = {each: at for each, at in self._resting.items() if at > now_s}
        return {flow for flow, of in self._resting if of == rank}

    def is_futile(self, opened: frozenset[Backend], now_s: float) -> bool:
        """Whether another look at what waits finds nothing. `opened`: `open_backends` now."""
        return not opened or (now_s < self._futile_s and opened <= self._futile)

    def futile(self, opened: frozenset[Backend], until_s: float) -> None:
        """A look has sent nothing. These were open."""
        self._futile, self._futile_s = opened, until_s

    def overdue(self, now_s: float) -> list[tuple[Ticket, Refused]]:
        """Take out those that nobody waits for any more, first of all in each flow."""
        over = []
        for rank, backlog in enumerate(self.queue.backlogs):
            for flow in list(backlog):
                for ticket in list(flow.queues[rank]):
                    waited_s = now_s - ticket.since_s
                    if waited_s <= LATE * ticket.deadline_s:
                        break
                    self.leave(ticket, now_s)
                    over.append((ticket, self.refusal.refused(ticket, waited_s)))
        return over

    def samples(self, now_s: float) -> bool:
        """Look at the streams' pace, and charge for what came of answers longer than expected.

        False if it did so a short time ago.
        """
        passed_s = now_s - self._sampled_s
        if passed_s < SAMPLE_S:
            return False
        self.pace.look(now_s)
        self._sampled_s = now_s
        for room in self.rooms.values():
            room.sample(passed_s, now_s)
            for lease, ticket in room.tickets.items():
                taken = lease.taken_tokens + ANSWER_WEIGHT * lease.generated_tokens
                if taken > ticket.charged_tokens:
                    ticket.flow.charge(taken - ticket.charged_tokens)
                    ticket.charged_tokens = taken
        return True
