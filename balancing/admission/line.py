"""The line before one pool: who passes at once, who waits, who is refused.

The policy chooses among all backends. If its choice has no room, the request waits, and is chosen
for again when that may have changed. Waiting has its price too: a place with room is taken if it
costs little more than the best one, and the longer the request has waited, the more that may be.
But not a place whose streams are slow: there a window hides how much work the backend has.

Refusing early is what keeps a fleet at its best above its capacity: whoever waits too long has
left, or calls it too late, when its prompt has been computed. So a request is refused at once if
its first token is predicted too late, and again when it would be sent too late.
"""

from collections.abc import Callable
from math import inf
from random import Random
from typing import Final

from penstock.balancing.admission.pace import Pace
from penstock.balancing.admission.prediction import learn, own_s, predict
from penstock.balancing.admission.queue import Queue
from penstock.balancing.admission.room import Room
from penstock.balancing.admission.spread import Spread
from penstock.balancing.admission.ticket import Refused, Ticket
from penstock.balancing.backend import Backend
from penstock.balancing.gate import Look
from penstock.balancing.lease import Lease
from penstock.balancing.occupancy import Occupancy
from penstock.balancing.queued_prompts import QueuedPrompts

# The share of its deadline after which a first token is predicted too late. It decides how long
# requests wait and hardly how many are served. Once requests have waited for STANDING_S without a
# pause, the queue is only delay: a shorter one serves as many. The highest class keeps its share.
SHARE: Final = 0.6
STANDING_SHARE: Final = 0.2
STANDING_S: Final = 20.0
# So much of its own prefill does not count beside the share. If all of it did, long prompts would
# be the first refused: the longest quarter got a third of its part, and so it gets half.
OWN_SHARE: Final = 0.75
SURELY_LATE: Final = 0.95
# When it would be sent: waited, and still to do there, beside the deadline.
LATE: Final = 0.9
# Hints are longer than a second and shorter than what SDKs obey, and spread.
HINT_MIN_S: Final = 1.0
HINT_MAX_S: Final = 59.0
# How much more than the best place one with room may cost, as a share, and more each second. With
# ten times as much, long prompts with common beginnings went everywhere: on published traces
# answers took 18 to 32 % longer at 0.95 of capacity. With half of it, the longest quarter of
# prompts got less than half of its part above capacity.
DETOUR: Final = 0.1
DETOUR_PER_S: Final = 0.1
# How often the streams are looked at while requests wait.
SAMPLE_S: Final = 0.1
# No detour to streams with a longer time between tokens than this.
GAP_MAX_S: Final = 0.06
# Lower classes pass nothing once one of a higher class has waited for so long.
YIELD_S: Final = 0.25
# Prompts count twice less than answers: a token of an answer takes a whole step (VTC's weights).
ANSWER_WEIGHT: Final = 2.0


class Line(Occupancy):
    """One pool's waiting requests, the room at its backends, and what the waits teach."""

    __slots__ = (
        "_empty_s",
        "_futile",
        "_futile_s",
        "_on_change",
        "_pace",
        "_rng",
        "_sampled_s",
        "_spread",
        "queue",
        "rooms",
    )

    def __init__(
        self, shares: tuple[float, ...], rng: Random, on_change: Callable[[], None]
    ) -> None:
        """`shares`: the least share of each class, the highest first."""
        self._rng = rng
        self._on_change = on_change
        self._spread = Spread()  # of the answers of all flows
        self._pace = Pace(len(shares))
        self._empty_s = 0.0  # when nothing waited, last
        self._sampled_s = 0.0
        self.queue = Queue(shares)
        self.rooms: dict[Backend, Room] = {}
        # The last wake that sent nothing. Until then another finds the same, with these open.
        self._futile_s = 0.0
        self._futile: frozenset[Backend] = frozenset()

    def room_of(self, backend: Backend) -> Room:
        room = self.rooms.get(backend)
        if room is None:
            room = self.rooms[backend] = Room(backend, self._spread)
            backend.occupancy = self
        return room

    def keep(self, backends: tuple[Backend, ...]) -> None:
        """These are in the pool now. Others are forgotten when they have no requests."""
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
        first = ticket.retry  # its client has waited already
        if not self.queue.waiting:
            self._empty_s = self._sampled_s = now_s
            for room in self.rooms.values():
                room.begin_samples()
        self._pace.look(now_s)
        uncached = look.ask.prompt_tokens - look.chosen.cache.cached_tokens(look.ask)
        ticket.tokens = max(1, int(uncached * look.ask.likely))
        ticket.only = look.chosen if look.bound else None
        flow = ticket.flow
        ahead = 0.0 if first else self.queue.ahead_tokens(flow, ticket.rank, ticket.tokens)
        speeds = [each.prefill_speed.work_per_s for each in look.fit]
        queued = sum([each.queued_prefill_tokens for each in look.fit])
        seconds = predict(ticket, ahead, queued, speeds, self._pace)
        seconds += now_s - ticket.since_s
        standing = ticket.rank > 0 and now_s - self._empty_s > STANDING_S
        allowed_s = (STANDING_SHARE if standing else SHARE) * ticket.deadline_s
        others_s = seconds - OWN_SHARE * own_s(ticket, speeds, self._pace)
        if others_s > allowed_s or seconds > SURELY_LATE * ticket.deadline_s:
            raise self._refused(seconds, SHARE * ticket.deadline_s)
        self.queue.add(ticket, first=first)
        self._futile_s = 0.0  # there may be room for this one
        self._pace.busy = True

    def reshape(self, shares: tuple[float, ...]) -> None:
        """Take other classes. What waits in one that is gone waits in the last one."""
        self.queue.reshape(shares)
        self._pace = Pace(len(shares))
        self._pace.busy = self.queue.waiting > 0

    def leave(self, ticket: Ticket, now_s: float) -> None:
        """It waits no more: it is sent, refused, or its client has left."""
        self._pace.look(now_s)
        self.queue.remove(ticket)
        if not self.queue.waiting:
            self._pace.busy = False
            self._empty_s = now_s

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
            self._pace.count(tokens, ticket.rank, now_s)
            learn(ticket, now_s - ticket.since_s)

    def ended(self, prompts: QueuedPrompts, now_s: float) -> None:
        assert isinstance(prompts, Lease)
        ticket = self.rooms[prompts.backend].remove(prompts)
        if self.queue.waiting:
            self._on_change()
        if ticket is None:
            return
        if prompts.whole and prompts.ask.stream and prompts.ask.generates:
            choices = prompts.ask.prompts * prompts.ask.choices
            self._spread.observe(ticket.flow.answered(max(1, prompts.generated_tokens // choices)))
        taken = prompts.taken_tokens + ANSWER_WEIGHT * prompts.generated_tokens
        ticket.flow.charge(taken - ticket.charged_tokens)
        ticket.charged_tokens = 0.0

    # What waits --------------------------------------------------------------------------------

    def place(self, ticket: Ticket, look: Look, now_s: float) -> Backend | None:
        """Where it may be sent now: to the choice, or on a detour. None: it waits on.

        Raises Refused if it would come too late there.
        """
        chosen: Backend | None = look.chosen
        if not self.room_of(look.chosen).takes(ticket.flow, look.ask, now_s):
            chosen = self._detour(ticket, look, now_s)
        if chosen is None:
            return None
        speed = chosen.prefill_speed
        work = chosen.wait_work(now_s) + (ticket.tokens or look.ask.prompt_tokens)
        seconds = now_s - ticket.since_s + work * speed.work_s + speed.step_s
        if seconds > LATE * ticket.deadline_s:
            raise self._refused(seconds, SHARE * ticket.deadline_s)
        return chosen

    def _detour(self, ticket: Ticket, look: Look, now_s: float) -> Backend | None:
        """The cheapest place with room that is not far dearer than the best one."""
        places = [look.chosen]
        for backend in look.fit:
            room = self.room_of(backend)
            if backend is look.chosen or room.gap_s > GAP_MAX_S:
                continue
            if room.takes(ticket.flow, look.ask, now_s):
                places.append(backend)
        if len(places) == 1:
            return None
        costs = look.pool.policy.costs(places, look.ask, now_s)
        best, least = 0, inf
        for place in range(1, len(places)):
            if costs[place] < least:
                best, least = place, costs[place]
        dearer = DETOUR + DETOUR_PER_S * (now_s - ticket.since_s)
        return places[best] if least <= costs[0] * (1.0 + dearer) else None

    def must_yield(self, rank: int, now_s: float) -> bool:
        """Whether one of a higher class has waited too long for a lower one to pass."""
        for higher in range(rank):
            for flow in self.queue.backlogs[higher]:
                if now_s - next(iter(flow.queues[higher])).since_s > YIELD_S:
                    return True
        return False

    def open_backends(self, now_s: float, most: int) -> frozenset[Backend]:
        """Those with room for the smallest prompt of those that would be looked at."""
        least: Ticket | None = None
        opened = [
            backend
            for backend, room in self.rooms.items()
            if backend.can_serve and room.takes_prompts()
        ]
        for rank, backlog in enumerate(self.queue.backlogs):
            if backlog and opened:
                for ticket in self.queue.turns(rank, most, opened):
                    if least is None or ticket.ask.prompt_tokens < least.ask.prompt_tokens:
                        least = ticket
        if least is None:
            return frozenset()
        return frozenset(
            [
                backend
                for backend in opened
                if self.rooms[backend].fits(least.flow, least.ask, now_s)
            ]
        )

    def takes_prompts(self) -> bool:
        """Whether any backend does."""
        for room in self.rooms.values():  # noqa: SIM110 - compiled: no generator
            if room.takes_prompts() and room.backend.can_serve:
                return True
        return False

    @property
    def deserted(self) -> bool:
        """Whether no backend can serve: nobody need wait for that."""
        for backend in self.rooms:  # noqa: SIM110 - compiled: no generator
            if backend.can_serve:
                return False
        return True

    def is_futile(self, opened: frozenset[Backend], now_s: float) -> bool:
        """Whether another look at what waits finds nothing. `opened`: `open_backends` now."""
        return not opened or (now_s < self._futile_s and opened <= self._futile)

    def futile(self, opened: frozenset[Backend], until_s: float) -> None:
        """A look has sent nothing. These were open."""
        self._futile, self._futile_s = opened, until_s

    def overdue(self, now_s: float) -> list[tuple[Ticket, Refused]]:
        """Take out those that nobody waits for any more, first of all in each flow.

        Does nothing if it did so a short time ago.
        """
        if now_s - self._sampled_s < SAMPLE_S:
            return []
        self._sample(now_s)
        over = []
        for rank, backlog in enumerate(self.queue.backlogs):
            for flow in list(backlog):
                for ticket in list(flow.queues[rank]):
                    waited_s = now_s - ticket.since_s
                    if waited_s <= LATE * ticket.deadline_s:
                        break
                    self.leave(ticket, now_s)
                    over.append((ticket, self._refused(waited_s, SHARE * ticket.deadline_s)))
        return over

    def _sample(self, now_s: float) -> None:
        """Look at the streams' pace, and charge for what came of answers longer than expected."""
        passed_s = now_s - self._sampled_s
        self._sampled_s = now_s
        for room in self.rooms.values():
            if passed_s > 0.0:
                room.sample(passed_s)
            for lease, ticket in room.tickets.items():
                taken = lease.taken_tokens + ANSWER_WEIGHT * lease.generated_tokens
                if taken > ticket.charged_tokens:
                    ticket.flow.charge(taken - ticket.charged_tokens)
                    ticket.charged_tokens = taken

    def _refused(self, seconds: float, allowed_s: float) -> Refused:
        hint_s = max(HINT_MIN_S, seconds - allowed_s) * self._rng.uniform(1.0, 2.0)
        return Refused(min(HINT_MAX_S, hint_s), seconds)
