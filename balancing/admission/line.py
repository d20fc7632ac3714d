"""The line before one pool: who passes at once, who waits, who is refused.

The policy chooses among all backends. If its choice has no room, the request waits, and is chosen
for again when that may have changed. Now and then another place is taken (`detour`).
"""

from collections.abc import Callable, Collection, Sequence
from itertools import islice
from random import Random
from typing import Final

from penstock.balancing.admission.deadlines import Deadlines
from penstock.balancing.admission.detour import detour, lighter
from penstock.balancing.admission.held import Held
from penstock.balancing.admission.lack import Lack
from penstock.balancing.admission.looks import Looks
from penstock.balancing.admission.pace import Pace
from penstock.balancing.admission.places import Places, needs_room
from penstock.balancing.admission.prediction import learn, own_s, predict
from penstock.balancing.admission.queue import (
    ANSWER_WEIGHT,
    YIELD_S,
    Queue,
    servable,
)
from penstock.balancing.admission.refusal import Refusal
from penstock.balancing.admission.stranded import Stranded
from penstock.balancing.admission.ticket import Flow, Ticket
from penstock.balancing.backend import Backend
from penstock.balancing.gate import NoBackend
from penstock.balancing.lease import Lease
from penstock.balancing.look import Look
from penstock.balancing.occupancy import Occupancy
from penstock.balancing.queued_prompts import QueuedPrompts

# So many are given up in one wake. To tell a thousand clients took 94 ms, in which streams wait.
GIVEN_UP_MAX: Final = 64
# How often the streams are looked at while requests wait.
SAMPLE_S: Final = 0.1
# What its own flow or class has too much of, or giants of all flows.
OWN: Final = (Lack.ANSWERS, Lack.GIANTS, Lack.LONG, Lack.STREAMS)
# A long prompt, for which a backend is kept, is so many times as long as those that run there.
LONG: Final = 1.5
# Behind so many that a backend has failed, the age of a flow's requests is seen.
FIRST_MAX: Final = 16


class Line(Occupancy):
    """One pool's waiting requests, the room at its backends, and what the waits teach."""

    __slots__ = (
        "_beside",
        "_deadlines",
        "_on_change",
        "_sampled_s",
        "gives_up",
        "held",
        "looks",
        "pace",
        "places",
        "queue",
        "refusal",
        "stranded",
    )

    def __init__(
        self, shares: tuple[float, ...], rng: Random, on_change: Callable[[], None]
    ) -> None:
        """`shares`: the least share of each class, the highest first."""
        self.refusal = Refusal(len(shares), rng)
        self._on_change = on_change
        self.pace = Pace(len(shares))
        self._beside: dict[Ticket, None] = {}  # what waits and needs no room
        self._deadlines = Deadlines()
        self._sampled_s = 0.0
        self.queue = Queue(shares)
        self.held = Held(self.queue)
        self.places = Places(self, self.queue.flows)
        self.stranded = Stranded(self.queue, self.places)
        self.looks = Looks()
        self.gives_up = False  # more are to be given up than the last wake did

    # What comes --------------------------------------------------------------------------------

    def wait(self, ticket: Ticket, look: Look, now_s: float) -> None:
        """Let it wait. Raises Refused if its first token would come too late."""
        self.look_for_backends(now_s, holds=self.held.active)  # one is back, if only for a moment
        self._look(now_s)
        if needs_room(look.ask):
            self.places.crowding.company.came(ticket.flow, now_s)
        self.judge(ticket, look, now_s)
        self._line_up(ticket, now_s)
        self._want(ticket, look.chosen)

    def hold(self, ticket: Ticket, now_s: float) -> None:
        """Let it wait until a backend can serve. Raises Refused if too much waits already."""
        self.look_for_backends(now_s, holds=True)
        self._look(now_s)
        self.judge_held(ticket, now_s)
        ticket.general, ticket.general_then = False, True
        self.held.add(ticket, now_s)
        self._line_up(ticket, now_s)

    def judge_held(self, ticket: Ticket, now_s: float) -> None:
        """The same as `judge` for one that waits for a backend. Raises Refused."""
        ticket.tokens = ticket.ask.prompt_tokens
        ticket.answer_tokens = ticket.flow.expect(ticket.ask)
        ticket.only = None
        self._predict(ticket, self.places.members, 0.0, now_s)

    def look_for_backends(self, now_s: float, *, holds: bool) -> None:
        """Begin to hold what waits if no backend can serve, or end that."""
        deserted = holds and self.places.deserted
        if deserted is not self.held.active:
            self._look(now_s)
            self.held.become(now_s, active=deserted)
            self.pace.busy = self.queue.general() > 0
            self.looks.renew()

    def _line_up(self, ticket: Ticket, now_s: float) -> None:
        if not self.queue.waiting:
            self._sampled_s = now_s
            for room in self.places.rooms.values():
                room.begin_samples(now_s)
        self.queue.add(ticket, first=bool(ticket.tried))
        self._deadlines.add(ticket, now_s)
        if not needs_room(ticket.ask):
            self._beside[ticket] = None
        self.looks.renew()  # there may be room for this one
        self.pace.busy = self.queue.general() > 0

    def judge(self, ticket: Ticket, look: Look, now_s: float) -> None:
        """Predict when one that must wait will have its first token. Changes nothing else.

        Raises Refused if that is too late.
        """
        uncached = look.ask.prompt_tokens - look.chosen.cache.cached_tokens(look.ask)
        ticket.tokens = max(1, int(uncached * look.ask.likely))
        ticket.answer_tokens = ticket.flow.expect(look.ask)
        ticket.only = look.chosen if look.bound else None
        # One that some backends cannot serve tells nothing of the pool when it waits.
        ticket.general = not look.bound and len(look.fit) + len(ticket.tried) >= self.places.able
        if ticket.lack in OWN:
            ticket.general = False  # nor does one that waits for its own
        cache = self.places.room_of(look.chosen).cache
        before = sum([len(each) for each in ticket.flow.queues[: ticket.rank + 1]])
        own_s = cache.own_wait_s(ticket, look.ask, before, now_s)
        full_s = max(own_s, cache.likely_wait_s(ticket, look.ask, now_s))
        backends = self.places.not_taken(look.fit, ticket.flow, look.ask.model, now_s)
        self._predict(ticket, backends, full_s, now_s)

    def _predict(
        self, ticket: Ticket, backends: Sequence[Backend], full_s: float, now_s: float
    ) -> None:
        ahead = 0.0  # its client has waited already
        if not ticket.tried:
            ahead = self.queue.ahead_tokens(ticket.flow, ticket.rank, ticket.tokens)
        speeds = [each.prefill_speed.work_per_s for each in backends]
        queued = sum([each.queued_prefill_tokens for each in backends])
        seconds = predict(ticket, ahead, queued, full_s, speeds, self.pace)
        seconds += now_s - ticket.since_s
        allowed_s = self.allowed_s(ticket.rank, ticket.deadline_s, now_s)
        self.refusal.check(ticket, seconds, own_s(ticket, speeds, self.pace), allowed_s)

    def allowed_s(self, rank: int, deadline_s: float, now_s: float) -> float:
        """How late a first token of this class may be predicted to come."""
        return self.refusal.allowed_s(rank, deadline_s, self.queue.generals, now_s)

    def reshape(self, shares: tuple[float, ...], ranks: Sequence[int]) -> None:
        """Take other classes. `ranks`: for each old one, the class that its requests have now."""
        waiting = self.queue.take_all()
        tickets = [
            ticket for room in self.places.rooms.values() for ticket in room.tickets.values()
        ]
        for ticket in tickets + waiting:
            ticket.rank = ranks[ticket.rank]
        self.queue.reshape(shares)
        for ticket in waiting:
            self.queue.add(ticket)
        for room in self.places.rooms.values():
            room.long_pace.reshape(ranks)
        self.places.reserve.reshape(ranks)
        self.refusal.reshape(len(shares))
        self.pace.reshape(len(shares))

    def leave(self, ticket: Ticket, now_s: float) -> None:
        """It waits no more: it is sent, refused, or its client has left."""
        self.pace.look(now_s)
        self._want(ticket, None)
        self.places.backfill.release(ticket)
        self._beside.pop(ticket, None)
        self._deadlines.remove(ticket)
        self.held.remove(ticket)
        self.queue.remove(ticket)
        ticket.release(now_s)
        self._look(now_s)
        self.pace.busy = self.queue.general() > 0

    def slept(self, time_s: float) -> None:
        """The process did not run for this long: nobody has waited meanwhile."""
        self.pace.slept(time_s)
        self.refusal.slept(time_s)
        self._sampled_s += time_s
        for room in self.places.rooms.values():
            room.slept(time_s)

    def _look(self, now_s: float) -> None:
        """Before something begins or ends to wait: look at the time."""
        self.pace.look(now_s)
        self.refusal.look(self.queue.generals, now_s)

    def sent(self, ticket: Ticket, lease: Lease) -> None:
        """It is sent. Its flow is charged what it should take; `ended` corrects that."""
        if needs_room(lease.ask):
            self.places.crowding.company.came(ticket.flow, lease.began_s)
        self.places.room_of(lease.backend).add(lease, ticket)
        self.places.crowding.renew()
        ticket.tokens = ticket.tokens or lease.queued_tokens
        self.queue.sent(ticket)
        tokens = lease.queued_tokens + ANSWER_WEIGHT * ticket.answer_tokens
        ticket.charged_tokens = 0.0
        self.places.charge(lease, ticket, tokens, lease.began_s)

    # What the leases tell ----------------------------------------------------------------------

    def prefilled(self, prompts: QueuedPrompts, now_s: float) -> None:
        assert isinstance(prompts, Lease)
        room = self.places.rooms[prompts.backend]
        room.prefilled(prompts)
        self.places.crowding.renew()
        if self.queue.waiting:
            self._on_change()
        else:  # others may wait in the engine
            room.look_at_report(now_s)
        ticket = room.tickets.get(prompts)
        if ticket is not None:
            tokens = prompts.ask.prompt_tokens - prompts.cached_tokens
            self.pace.count(tokens, ticket.rank, now_s)
            learn(ticket, now_s - ticket.since_s)

    def ended(self, prompts: QueuedPrompts, now_s: float) -> None:
        assert isinstance(prompts, Lease)
        room = self.places.rooms[prompts.backend]
        ticket = room.remove(prompts, now_s)
        self.places.crowding.renew()
        if self.queue.waiting:
            self._on_change()
            if room.cache.short:
                room.cache.short = False
                self.looks.renew()
        if ticket is None:
            return
        seen = prompts.ask.stream or (prompts.whole and prompts.generated_tokens > 0)
        if seen and prompts.ask.generates:
            choices = prompts.ask.prompts * prompts.ask.choices
            tokens = max(1, prompts.generated_tokens // choices)
            # One that was cut tells that it would have been longer still.
            if prompts.whole or 0.0 < ticket.flow.answer_tokens < tokens:
                self.places.spread.observe(ticket.flow.answered(tokens))
        taken = prompts.taken_tokens + ANSWER_WEIGHT * prompts.generated_tokens
        if not prompts.whole and not prompts.ask.stream:
            unseen = prompts.taken_tokens + ANSWER_WEIGHT * prompts.unseen_tokens(now_s)
            taken = max(taken, unseen)
            # Its class is charged for what it may have made, its flow for all that was expected.
            ticket.flow.charge(max(0.0, ticket.charged_tokens - taken), now_s)
        self.places.charge(prompts, ticket, taken - ticket.charged_tokens, now_s)
        ticket.charged_tokens = 0.0

    # What waits --------------------------------------------------------------------------------

    def place(self, ticket: Ticket, look: Look, now_s: float) -> Backend | None:
        """Where it may be sent now: to the choice, or on a detour. None: it waits on.

        Raises Refused if it would come too late there.
        """
        if not needs_room(look.ask):
            return self.places.beside(look, ticket, now_s)
        look = lighter(self.places, look, now_s)
        if ticket.waits:
            self._want(ticket, look.chosen)
        chosen: Backend | None = look.chosen
        if not self.places.takes(look.chosen, ticket, look.ask, now_s):
            chosen = detour(self.places, ticket, look, now_s)
        if chosen is None:
            return None
        speed = chosen.prefill_speed
        own = (ticket.tokens or look.ask.prompt_tokens) * speed.work_s
        before = chosen.wait_work(now_s) * speed.work_s
        seconds = now_s - ticket.since_s + before + own + speed.step_s
        self.refusal.check_sending(ticket, seconds, own)
        return chosen

    @property
    def beside_waits(self) -> bool:
        """Whether something waits that needs no room in a cache."""
        return bool(self._beside)

    def beside_turns(self) -> list[Ticket]:
        """Of what needs no room the next one of each flow, in the order of their turns."""
        if not self._beside or self.places.full or self.places.deserted:
            return []
        heads: dict[Flow, Ticket] = {}
        for ticket in self._beside:
            heads.setdefault(ticket.flow, ticket)
        return sorted(heads.values(), key=_turn)

    def _want(self, ticket: Ticket, backend: Backend | None) -> None:
        """It waits for this backend now."""
        if ticket.wanted is not backend:
            if ticket.wanted is not None and ticket.wanted in self.places.rooms:
                self.places.rooms[ticket.wanted].wanted -= 1
            if backend is not None:
                self.places.room_of(backend).wanted += 1
            ticket.wanted = backend

    def must_yield(self, rank: int, opened: Collection[Backend], now_s: float) -> bool:
        """Whether one of a higher class waits that could be sent, and too long to be passed.

        Nobody makes way for one whose own flow has too much under way: that is of no use to it.
        Nor for one that already had a backend kept for it: each request has that once. Short
        requests may still use that backend meanwhile. Nor for what needs no turn.
        """
        for higher in range(rank):
            for flow in self.queue.backlogs[higher]:
                if now_s - _oldest_s(flow, higher) <= YIELD_S:
                    continue
                for ticket in servable(flow, higher, 1, opened):
                    if ticket.kept_before or self._waits_for_its_own(ticket):
                        continue
                    if self.places.may_grow(ticket, opened, now_s):
                        return True
        return False

    def _waits_for_its_own(self, ticket: Ticket) -> bool:
        """Whether it waits for its own flow or for other giants, or needs no turn."""
        if ticket.lack is Lack.GIANT and ticket.wanted is not None:
            return ticket.flow in self.places.room_of(ticket.wanted).taken
        return ticket.lack in OWN or not needs_room(ticket.ask)

    def keep_place(self, ticket: Ticket, now_s: float) -> None:
        """It is next, and has found no room. Keep a backend for it, if it needs that."""
        wanted, backfill, ask = ticket.wanted, self.places.backfill, ticket.ask
        room = self.places.rooms.get(wanted) if wanted is not None else None
        if room is None or not backfill.wants(ticket, now_s):
            return  # no room: the look has moved it to the line of another pool
        alike = ask.prompt_tokens < LONG * room.mean_prompt_tokens  # to keep one then helps none
        if not alike and self.places.lack(room.backend, ticket, ask, now_s) is Lack.KV_CACHE:
            within_s = room.cache.sure_wait_s(ticket, ask, now_s)
            backfill.keep(room.backend, ticket, within_s, self.places.able, now_s)

    def given_up(self, hold_s: float, now_s: float) -> list[tuple[Ticket, Exception]]:
        """Take out some that nobody waits for any more, or that were held for longer than this."""
        over: list[tuple[Ticket, Exception]] = []
        for ticket in self._deadlines.over(GIVEN_UP_MAX, now_s):
            waited_s = ticket.waited_s(now_s)
            self.leave(ticket, now_s)
            over.append((ticket, self.refusal.refused(ticket, waited_s)))
        if self.held.active:
            for ticket in self.held.over(hold_s, GIVEN_UP_MAX - len(over), now_s):
                self.leave(ticket, now_s)
                over.append((ticket, NoBackend()))
        self.gives_up = len(over) == GIVEN_UP_MAX or self._deadlines.unseen
        if self.gives_up:
            self._on_change()
        return over

    def samples(self, now_s: float) -> bool:
        """Look at the streams' pace, and charge for what came of answers longer than expected.

        False if it did so a short time ago.
        """
        passed_s = now_s - self._sampled_s
        if passed_s < SAMPLE_S:
            return False
        self.pace.look(now_s)
        self.places.backfill.expire(now_s)
        self._sampled_s = now_s
        for room in self.places.rooms.values():
            room.sample(now_s)
            for lease, ticket in room.tickets.items():
                taken = lease.taken_tokens + ANSWER_WEIGHT * lease.generated_tokens
                if taken > ticket.charged_tokens:
                    self.places.charge(lease, ticket, taken - ticket.charged_tokens, now_s)
        return True


def _oldest_s(flow: Flow, rank: int) -> float:
    """Since when one of the first few waits. Those that a backend has failed come first."""
    queue = flow.queues[rank]
    oldest = next(iter(queue))
    if not oldest.tried:
        return oldest.since_s
    return min([each.since_s for each in islice(queue, FIRST_MAX)])


def _turn(ticket: Ticket) -> tuple[int, float]:
    return ticket.rank, ticket.flow.served
