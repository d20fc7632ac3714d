"""Admission: a request is sent at once, waits in the line of its pool, or is refused.

When nothing waits and the choice has room, this costs a few comparisons more than the choice.
Nothing here has a clock. Whoever has one calls `wake` soon after `on_change` was called, and every
TICK_S while something waits: prompts of plain answers leave an engine's queue by the clock alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from random import Random
from typing import Final

from penstock.balancing.admission.elsewhere import Elsewhere, held_on, moves
from penstock.balancing.admission.forecast import (
    Fate,
    Forecast,
    at_once,
    blank_line,
    forecast,
    forecast_held,
    lack_of,
)
from penstock.balancing.admission.lack import Lack
from penstock.balancing.admission.line import Line
from penstock.balancing.admission.round import Round
from penstock.balancing.admission.scan import FUTILE_S, SCAN, Outcome, Scan, place
from penstock.balancing.admission.ticket import Ticket
from penstock.balancing.backend import Backend
from penstock.balancing.computed_prompts import OverContext
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.gate import Gate, NoBackend
from penstock.balancing.lease import Lease
from penstock.balancing.look import Look

TICK_S: Final = 0.05
SEND_ALL_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Rules:
    """What a configuration says.

    `classes`: their names, the highest first. `shares`: the least share of each. `weights`: those
    of tenants, by name; 1 for others. `hold_for_backend_s`: how long a request waits while no
    backend of its pool can serve. `window_s`: how much prefill a backend gets beforehand.
    None: what is usual.
    """

    enabled: bool = False  # False: each request is sent at once
    shares: tuple[float, ...] = (0.0,)
    classes: tuple[str, ...] = ("",)
    weights: Mapping[str, float] = field(default_factory=dict)
    hold_for_backend_s: float = 0.0
    window_s: float | None = None


class Admission:
    """The lines of all pools, before one gate."""

    def __init__(
        self,
        gate: Gate,
        fleet: Callable[[], Fleet],
        rng: Random,
        on_change: Callable[[], None],
        rules: Rules,
    ) -> None:
        """`on_change`: what waits may have room now. It must not call back at once."""
        self._gate = gate
        self._fleet = fleet
        self._rng = rng
        self._round = Round(on_change)
        self._on_change = self._round.changed
        self.lines: dict[str, Line] = {}  # by pool
        self.rules = rules
        self.enabled = rules.enabled  # read for each request

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return sum([line.queue.waiting for line in self.lines.values()])

    def queued(self, rank: int) -> tuple[int, int]:
        """How many requests of a class wait, and their tokens still to prefill."""
        requests = tokens = 0
        for line in self.lines.values():
            for flow in line.queue.backlogs[rank] if rank < len(line.queue.backlogs) else ():
                requests += len(flow.queues[rank])
                tokens += flow.queued_tokens[rank]
        return requests, tokens

    def held(self, pool: str) -> tuple[int, int]:
        """How many requests wait for a backend of this pool, and their prompt tokens."""
        line = self.lines.get(pool)
        if line is None or not line.held.active:
            return 0, 0
        tokens = 0
        for rank, backlog in enumerate(line.queue.backlogs):
            for flow in backlog:
                tokens += flow.queued_tokens[rank]
        return line.queue.waiting, tokens

    def enter(self, ticket: Ticket, now_s: float) -> Lease | None:
        """The lease, if it is sent at once. None: it waits, and `ticket.ready` will be called.

        Raises Refused, and what `Gate.choose` raises.
        """
        ticket.rank = min(ticket.rank, len(self.rules.shares) - 1)  # a reload may have fewer
        if not self.enabled:
            return self._gate.choose(ticket.ask, now_s, ticket.tried, retry=ticket.retry)
        try:
            look = self._gate.look(ticket.ask, now_s, ticket.tried)
        except NoBackend:
            if self._hold(ticket, now_s):
                return None
            raise
        if look.asks_only:
            return self._gate.place(look, now_s, retry=ticket.retry)
        line = self._line_for(ticket, look.pool)
        chosen = at_once(line, ticket, look, now_s)
        if chosen is not None:
            return self._send(line, ticket, look, chosen, now_s)
        line.wait(ticket, look, now_s)
        return None

    def fate(self, ticket: Ticket, now_s: float) -> Fate:
        """What would become of a dry ticket. It is quicker than the whole forecast."""
        return self.forecast(ticket, now_s, fate_only=True).fate

    def forecast(self, ticket: Ticket, now_s: float, *, fate_only: bool = False) -> Forecast:
        """What `enter` would do with a dry ticket. Keeps and counts nothing.

        Raises what `Gate.look` raises.
        """
        try:
            look = self._gate.look(ticket.ask, now_s, dry=True)
        except NoBackend:
            found = self._forecast_held(ticket, now_s)
            if found is None:
                raise
            return found
        if not self.enabled:
            return Forecast(Fate.AT_ONCE, look.chosen)
        line = self._line_seen(ticket, look.pool)
        return forecast(line, ticket, look, now_s, fate_only=fate_only)

    def takes_now(self, ticket: Ticket, look: Look, now_s: float) -> bool:
        """Whether nothing waits in its pool and its choice has room, for a dry ticket."""
        line = self._line_seen(ticket, look.pool)
        if line.queue.waiting:
            return False
        return line.places.takes(look.chosen, ticket, look.ask, now_s)

    def _forecast_held(self, ticket: Ticket, now_s: float) -> Forecast | None:
        """The same for one that no backend can serve now. None: it would not wait for that."""
        pool = self._pool_that_holds(ticket)
        if pool is None:
            return None
        line = self._line_seen(ticket, pool)
        if not line.places.nobody_serves(ticket):
            return None
        return forecast_held(line, ticket, self.rules.hold_for_backend_s, now_s)

    def _line_seen(self, ticket: Ticket, pool: Pool) -> Line:
        """As `_line_for` for a dry run: what is not there yet is made, and not kept."""
        line = self.lines.get(pool.name)
        if line is None:
            line = blank_line(pool, self.rules.shares, self.rules.window_s)
        ticket.flow = line.queue.seen(ticket.name)
        return line

    def lack(self, ticket: Ticket, now_s: float) -> tuple[Backend | None, Lack]:
        """What one that waits has not got yet, and at which backend. Changes nothing."""
        try:
            look = self._gate.look(ticket.ask, now_s, ticket.tried, dry=True)
        except (LookupError, OverContext):  # the next wake tells its client
            return None, Lack.BACKEND
        if look.pool.name != ticket.pool:  # it goes there with the next wake that looks at it
            return look.chosen, Lack.TURN
        return look.chosen, lack_of(self.lines[ticket.pool], ticket, look, now_s)

    def leave(self, ticket: Ticket, now_s: float) -> None:
        """Its client has left while it waited. Does nothing if it does not wait."""
        if ticket.waits:
            self.lines[ticket.pool].leave(ticket, now_s)
            self._on_change()

    def wake(self, now_s: float, outcomes: list[Outcome]) -> None:
        """Send what waits and has room now, and refuse what is too late.

        Adds to `outcomes`. Whoever calls it tells each ticket by `ready`, also after an exception.
        """
        self._round.begin(self.lines)
        while (name := self._round.next()) is not None:
            line = self.lines.get(name)
            if line is not None and line.queue.waiting:
                line.look_for_backends(now_s, holds=self._holds_for_backends(name))
                self._wake(line, now_s, outcomes)
        self._round.end()

    def follow(self, rules: Rules) -> None:
        """Take new rules, and forget what is no longer in the fleet."""
        before = self.rules
        if (rules.classes, rules.shares) != (before.classes, before.shares):
            last = len(rules.classes) - 1
            ranks = [
                rules.classes.index(name) if name in rules.classes else last
                for name in before.classes
            ]
            for line in self.lines.values():
                line.reshape(rules.shares, ranks)
        self.rules, self.enabled = rules, rules.enabled
        pools = {pool.name: pool for pool in self._fleet().pools}
        for name, line in list(self.lines.items()):
            line.queue.weigh(rules.weights)
            pool = pools.get(name)
            if pool is None:
                line.places.follow((), None, rules.window_s)
            else:
                line.places.follow(pool.backends, pool.max_requests, rules.window_s)
            if name not in pools and not line.places.rooms and not line.queue.waiting:
                del self.lines[name]
        self._on_change()

    def slept(self, time_s: float) -> None:
        """The process did not run for this long: nobody has waited meanwhile."""
        for line in self.lines.values():
            line.slept(time_s)

    def _wake(self, line: Line, now_s: float, outcomes: list[Outcome]) -> None:
        for backend in list(line.places.rooms):
            backend.advance(now_s)
        is_due = line.samples(now_s)
        if is_due or line.gives_up:
            outcomes += line.given_up(self.rules.hold_for_backend_s, now_s)
        if is_due and line.held.active:
            self._look_after_held(line, now_s, outcomes)
        elif is_due and line.stranded.is_time(now_s):
            self._look_after_stranded(line, now_s, outcomes)
        if not self.enabled or (line.places.deserted and not line.held.active):
            self._send_all(line, now_s, outcomes)
        self._scan(line, now_s, outcomes)
        # Last: they need no turn, and would take its place.
        self._send_beside(line, now_s, outcomes)

    def _scan(self, line: Line, now_s: float, outcomes: list[Outcome]) -> None:
        """Send what is next and has room, of all that waits."""
        opened = line.places.opened()
        if not line.queue.waiting or line.looks.is_futile(opened, now_s):
            return
        owed = partial(self._try, line, owed=True)
        scan = Scan(line, opened, partial(self._try, line), owed, outcomes, now_s)
        scan.run()
        if scan.unseen or (scan.found and line.places.takes_prompts()):
            self._on_change()
        if not scan.found and not scan.unseen:
            line.looks.futile(line.places.opened(), now_s + FUTILE_S)

    def _line_for(self, ticket: Ticket, pool: Pool) -> Line:
        """The line of its pool, in which it is from now on."""
        line = self.lines.get(pool.name)
        if line is None:
            line = self.lines[pool.name] = Line(self.rules.shares, self._rng, self._on_change)
            line.places.follow(pool.backends, pool.max_requests, self.rules.window_s)
            line.queue.weigh(self.rules.weights)
        ticket.pool = pool.name
        ticket.flow = line.queue.flow(ticket.name)
        return line

    def _holds_for_backends(self, pool: str) -> bool:
        """Whether requests wait while no backend of this pool can serve."""
        if not self.enabled or not self.rules.hold_for_backend_s:
            return False
        return pool in [each.name for each in self._fleet().pools]

    def _pool_that_holds(self, ticket: Ticket) -> Pool | None:
        """The pool whose backends a request waits for that none can serve now, if it waits."""
        pool = self._fleet().resolve(ticket.ask)[0]
        waits = self._holds_for_backends(pool.name) and ticket.ask.response_id is None
        return pool if waits and not ticket.elsewhere() else None

    def _hold(self, ticket: Ticket, now_s: float) -> bool:
        """Let it wait for a backend, if there is none at all. Raises Refused."""
        pool = self._pool_that_holds(ticket)
        if pool is None:
            return False
        line = self._line_for(ticket, pool)
        if not line.places.nobody_serves(ticket):
            return False
        line.hold(ticket, now_s)
        return True

    def _look_after_stranded(self, line: Line, now_s: float, outcomes: list[Outcome]) -> None:
        """Another pool may serve them. If not, they are told.

        So may others be served by a pool that comes before theirs and is back.
        """

        def refuses(ticket: Ticket) -> bool:
            return not moves(self.fate, line, ticket, now_s)

        stranded = line.stranded
        for ticket in chain(stranded.unservable(), stranded.movable(self._fleet(), refuses, now_s)):
            outcome = self._try(line, ticket, now_s)
            if outcome is not None:
                outcomes.append((ticket, outcome))

    def _look_after_held(self, line: Line, now_s: float, outcomes: list[Outcome]) -> None:
        """Send what a backend of another pool can serve."""
        others = [each for each in self._fleet().backends if each not in line.places.rooms]
        if not [each for each in others if each.can_serve]:
            return
        passes = line.held.passes
        passes.begin(now_s)
        for _ in range(SEND_ALL_MAX):  # the next wake goes on with the rest
            held = passes.next()
            if held is None:
                return
            outcome = self._try(line, held, now_s)
            if outcome is not None:
                outcomes.append((held, outcome))
            if isinstance(outcome, Elsewhere) or now_s < held.stays_until_s:
                passes.found_refusal(held)
            elif outcome is not None:
                passes.found_place()
            else:
                passes.found_nothing(held)

    def _send_beside(self, line: Line, now_s: float, outcomes: list[Outcome]) -> None:
        """Send what needs no room, as long as there are places among the requests."""
        failed = 0  # a flow may have to wait for its own requests, and the next one not
        for ticket in line.beside_turns()[:SEND_ALL_MAX]:
            outcome = self._try(line, ticket, now_s)
            if outcome is None:
                failed += 1
                if failed == SCAN:
                    return
                continue
            outcomes.append((ticket, outcome))
            self._on_change()  # its flow may have another one

    def _send_all(self, line: Line, now_s: float, outcomes: list[Outcome]) -> None:
        """Nobody need wait: a reload said so, or no backend is there. Takes several wakes."""
        for ticket in line.queue.oldest(SEND_ALL_MAX):
            line.leave(ticket, now_s)
            self._round.looked()
            try:
                outcome: Lease | Exception | None = self.enter(ticket, now_s)
            except Exception as error:  # noqa: BLE001 - its client is told, and no other is lost
                outcome = error
            if outcome is not None:
                outcomes.append((ticket, outcome))
        if line.queue.waiting:
            self._on_change()

    def _try(
        self, line: Line, ticket: Ticket, now_s: float, *, owed: bool = False
    ) -> Lease | Exception | None:
        """Look again where it may go. None: it waits on. `owed`: its class is owed its share."""
        self._round.looked()
        try:
            look = self._gate.look(ticket.ask, now_s, ticket.tried)
            if look.pool.name != ticket.pool:
                if moves(self.fate, line, ticket, now_s):
                    line.leave(ticket, now_s)
                    return self.enter(ticket, now_s)
                if ticket.held_since_s is not None:
                    return None
                own = ticket.pool
                look = self._gate.look(ticket.ask, now_s, ticket.tried, only_pool=own)
            chosen = place(line, ticket, look, now_s, owed=owed)
            if chosen is None:
                return None
            line.leave(ticket, now_s)
            return self._send(line, ticket, look, chosen, now_s)
        except NoBackend as nobody:  # another name than below: a compiled name has one type
            if ticket.held_since_s is not None:
                return held_on(line, ticket, now_s - ticket.held_since_s, now_s)
            if ticket.waits:
                line.leave(ticket, now_s)
            return nobody
        except Exception as error:  # noqa: BLE001 - its client is told, and no other is lost
            if ticket.waits:
                line.leave(ticket, now_s)
            return error

    def _send(self, line: Line, ticket: Ticket, look: Look, chosen: Backend, now_s: float) -> Lease:
        if chosen is not look.chosen:
            look = Look(look.pool, look.fit, look.ask, chosen)
        lease = self._gate.place(look, now_s, retry=ticket.retry)
        try:
            line.sent(ticket, lease)
        except BaseException:
            lease.end(now_s)
            raise
        return lease
