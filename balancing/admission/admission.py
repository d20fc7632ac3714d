"""Admission: a request is sent at once, waits in the line of its pool, or is refused.

When nothing waits and the choice has room, this costs a few comparisons more than the choice.
Nothing here has a clock. Whoever has one calls `wake` soon after `on_change` was called, and every
TICK_S while something waits: prompts of plain answers leave an engine's queue by the clock alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

from penstock.balancing.admission.forecast import (
    Fate,
    Forecast,
    at_once,
    forecast,
    lack_of,
    unused,
)
from penstock.balancing.admission.lack import Lack
from penstock.balancing.admission.line import Line
from penstock.balancing.admission.ticket import Flow, Ticket
from penstock.balancing.backend import Backend
from penstock.balancing.computed_prompts import OverContext
from penstock.balancing.fleet import Fleet
from penstock.balancing.gate import Gate, Look
from penstock.balancing.lease import Lease

# How many that wait are looked at in a wake, in the order of their turns. Of 8, 24 and 64, eight
# cost the least and sent as many (bench/history/2026-11-admission.md, B).
SCAN: Final = 8
# Beside other flows one flow gets so many looks that find no room, and a wake has so many in all.
SCAN_BESIDE: Final = 2
LOOKS_MAX: Final = 24
# With more flows than that, those that found no room rest, so that all are looked at in turn.
FLOWS_SEEN: Final = LOOKS_MAX // SCAN_BESIDE
# A wake that sent nothing is not repeated for so long, if no other place has opened since.
FUTILE_S: Final = 0.1
TICK_S: Final = 0.05
SEND_ALL_MAX: Final = 64

Outcome = tuple[Ticket, Lease | Exception]


@dataclass(frozen=True, slots=True)
class Rules:
    """What a configuration says.

    `classes`: their names, the highest first. `shares`: the least share of each. `weights`: those
    of tenants, by name; 1 for others.
    """

    holds: bool = False  # False: each request is sent at once
    shares: tuple[float, ...] = (0.0,)
    classes: tuple[str, ...] = ("",)
    weights: Mapping[str, float] = field(default_factory=dict)


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
        self._on_change = on_change
        self.lines: dict[str, Line] = {}  # by pool
        self.rules = rules
        self.holds = rules.holds  # read for each request

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

    def enter(self, ticket: Ticket, now_s: float) -> Lease | None:
        """The lease, if it is sent at once. None: it waits, and `ticket.ready` will be called.

        Raises Refused, and what `Gate.look` raises.
        """
        look = self._gate.look(ticket.ask, now_s, ticket.tried)
        if not self.holds:
            return self._gate.place(look, now_s, retry=ticket.retry)
        name = look.pool.name
        line = self.lines.get(name)
        if line is None:
            line = self.lines[name] = Line(self.rules.shares, self._rng, self._on_change)
            line.keep(look.pool.backends)
            line.queue.weigh(self.rules.weights)
        ticket.pool = name
        ticket.flow = line.queue.flow(ticket.name)
        chosen = at_once(line, ticket, look, now_s)
        if chosen is not None:
            return self._send(line, ticket, look, chosen, now_s)
        line.wait(ticket, look, now_s)
        return None

    def forecast(self, ticket: Ticket, now_s: float) -> Forecast:
        """What `enter` would do with a dry ticket. Keeps and counts nothing.

        Raises what `Gate.look` raises.
        """
        look = self._gate.look(ticket.ask, now_s, dry=True)
        if not self.holds:
            return Forecast(Fate.AT_ONCE, look.chosen)
        line = self.lines.get(look.pool.name)
        if line is None:
            line = unused(look.pool, self.rules.shares)
        ticket.flow = line.queue.seen(ticket.name)
        return forecast(line, ticket, look, now_s)

    def lack(self, ticket: Ticket, now_s: float) -> tuple[Backend | None, Lack]:
        """What one that waits has not got yet, and at which backend. Changes nothing."""
        try:
            look = self._gate.look(ticket.ask, now_s, ticket.tried, dry=True)
        except (LookupError, OverContext):  # the next wake tells its client
            return None, Lack.BACKEND
        return look.chosen, lack_of(self.lines[ticket.pool], ticket, look, now_s)

    def leave(self, ticket: Ticket, now_s: float) -> None:
        """Its client has left while it waited. Does nothing if it does not wait."""
        if ticket.waits:
            self.lines[ticket.pool].leave(ticket, now_s)
            self._on_change()

    def wake(self, now_s: float) -> list[Outcome]:
        """Send what waits and has room now, and refuse what is too late.

        Whoever calls it tells each ticket by `ready`, when this has returned.
        """
        outcomes: list[Outcome] = []
        for line in list(self.lines.values()):
            if line.queue.waiting:
                self._wake(line, now_s, outcomes)
        return outcomes

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
        self.rules, self.holds = rules, rules.holds
        pools = {pool.name: pool.backends for pool in self._fleet().pools}
        for name, line in list(self.lines.items()):
            line.queue.weigh(rules.weights)
            line.keep(pools.get(name, ()))
            if name not in pools and not line.rooms and not line.queue.waiting:
                del self.lines[name]
        self._on_change()

    def slept(self, time_s: float) -> None:
        """The process did not run for this long: nobody has waited meanwhile."""
        for line in self.lines.values():
            line.slept(time_s)

    def _wake(self, line: Line, now_s: float, outcomes: list[Outcome]) -> None:
        for backend in list(line.rooms):
            backend.advance(now_s)
        if line.samples(now_s):
            for ticket, refused in line.overdue(now_s):
                outcomes.append((ticket, refused))
            for ticket in line.stranded():
                outcome = self._try(line, ticket, now_s)
                if outcome is not None:
                    outcomes.append((ticket, outcome))
        if not self.holds or line.deserted:
            self._send_all(line, now_s, outcomes)
        opened = line.open_backends()
        if not line.queue.waiting or line.is_futile(opened, now_s):
            return
        if not self._scan(line, opened, now_s, outcomes):
            line.futile(line.open_backends(), now_s + FUTILE_S)

    def _scan(
        self, line: Line, opened: frozenset[Backend], now_s: float, outcomes: list[Outcome]
    ) -> bool:
        """Look at the next ones in the order of their turns. Whether another look may find more.

        Flows that rest come last: with many of them the others would not be looked at.
        """
        before, looks, unseen = len(outcomes), 0, False
        for rank, due in line.queue.ranks():
            if not due and line.queue.must_yield(rank, opened, now_s):
                break
            resting, tired = line.resting(rank, now_s), set[Flow]()
            for without in (resting, set[Flow]()):
                looks += self._sweep(
                    line, rank, opened, without, tired, LOOKS_MAX - looks, outcomes, now_s, due=due
                )
                if without is resting:
                    unseen = unseen or looks == LOOKS_MAX
                if due or not resting:
                    break
        sent = len(outcomes) > before
        if unseen or (sent and line.takes_prompts()):
            self._on_change()
        return sent or unseen

    def _sweep(
        self,
        line: Line,
        rank: int,
        opened: frozenset[Backend],
        without: set[Flow],
        tired: set[Flow],
        most: int,
        outcomes: list[Outcome],
        now_s: float,
        *,
        due: bool,
    ) -> int:
        """Try up to so many of a class, but of some flows none. Returns how many."""
        looks = 0
        while looks < most and line.takes_prompts():
            known = len(tired)
            turns = line.queue.turns(rank, most - looks, opened, tired | without)
            looks += self._try_all(line, turns, tired, outcomes, now_s, due=due)
            if due or len(tired) == known:
                break  # else some were left out of the list, and others may come instead
        return looks

    def _try_all(
        self,
        line: Line,
        turns: list[Ticket],
        tired: set[Flow],
        outcomes: list[Outcome],
        now_s: float,
        *,
        due: bool,
    ) -> int:
        """Try these, but no more of a flow than a few that find no room. Returns how many.

        `tired`: flows that have had their tries. `due`: only one may be sent, that is owed.
        """
        looks = 0
        failed: dict[Flow, int] = {}
        for ticket in turns:
            flow = ticket.flow
            if flow in tired or (due and not line.queue.is_owed(ticket)):
                continue
            if not line.takes_prompts():
                break
            looks += 1
            outcome = self._try(line, ticket, now_s)
            if outcome is not None:
                outcomes.append((ticket, outcome))
                if due:
                    break
                continue
            failed[flow] = failed.get(flow, 0) + 1
            flows = len(line.queue.backlogs[ticket.rank])
            if failed[flow] == (SCAN if flows == 1 else SCAN_BESIDE):
                tired.add(flow)
            if flows > FLOWS_SEEN:
                tired.add(flow)
                line.rest(flow, ticket.rank, now_s + FUTILE_S * flows / FLOWS_SEEN)
        return looks

    def _send_all(self, line: Line, now_s: float, outcomes: list[Outcome]) -> None:
        """Nobody need wait: a reload said so, or no backend is there. Takes several wakes."""
        for ticket in line.queue.oldest(SEND_ALL_MAX):
            line.leave(ticket, now_s)
            try:
                outcome: Lease | Exception | None = self.enter(ticket, now_s)
            except Exception as error:  # noqa: BLE001 - its client is told, and no other is lost
                outcome = error
            if outcome is not None:
                outcomes.append((ticket, outcome))
        if line.queue.waiting:
            self._on_change()

    def _try(self, line: Line, ticket: Ticket, now_s: float) -> Lease | Exception | None:
        """Look again where it may go. None: it waits on."""
        try:
            look = self._gate.look(ticket.ask, now_s, ticket.tried)
            if look.pool.name != ticket.pool:
                line.leave(ticket, now_s)
                return self.enter(ticket, now_s)
            chosen = line.place(ticket, look, now_s)
            if chosen is None:
                return None
            line.leave(ticket, now_s)
            return self._send(line, ticket, look, chosen, now_s)
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
