"""A pool with a gate and an admission before it, and what becomes of the requests that enter."""

from collections.abc import Mapping, Sequence
from math import inf
from random import Random
from typing import Any, ClassVar

from penstock.balancing.admission.admission import Admission, Rules
from penstock.balancing.admission.forecast import Fate, Forecast
from penstock.balancing.admission.lack import Lack
from penstock.balancing.admission.queue import Queue
from penstock.balancing.admission.scan import Outcome
from penstock.balancing.admission.ticket import Flow, Ticket
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend, State
from penstock.balancing.engine_report import EngineReport
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.gate import Gate
from penstock.balancing.lease import Lease
from penstock.balancing.policies.policy import Explanation, Policy, all_cheapest, cheapest

# An engine with such a prompt in its queue has no room for another one.
FILLS = 3_000


class Priced:
    """The costs are given by name, or the work that is queued. It counts its choices.

    It inherits nothing: what is compiled has no interpreted heirs.
    """

    needs_sessions: ClassVar[bool] = False
    needs_prefixes: ClassVar[bool] = False
    costs_seconds: ClassVar[bool] = False

    def __init__(self, prices: Mapping[str, float] | None = None) -> None:
        self.prices = prices
        self.choices = 0

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        self.choices += 1
        return cheapest(fit, self.costs(fit, ask, now_s), rng)

    def placed(self, chosen: Backend, fit: Sequence[Backend], ask: Ask, now_s: float) -> None:
        """Nothing is counted."""

    @property
    def homes(self) -> None:
        return None

    def home(self, ask: Ask) -> str | None:
        return None

    def remember(self, ask: Ask, chosen: Backend) -> None:
        """Nothing is learnt of sessions."""

    def explain(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> Explanation:
        return all_cheapest(fit, self.costs(fit, ask, now_s))

    def follow(self, new: Policy, backends: Sequence[Backend]) -> None:
        """There is nothing to follow."""

    def costs(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> Sequence[float]:
        if self.prices is not None:
            return [self.prices[each.name] for each in fit]
        return [float(each.queued_work) for each in fit]


def ready(name: str, kv_tokens: int | None = None) -> Backend:
    backend = Backend(name, "http://127.0.0.1:1", "p")
    backend.state = State.READY
    if kv_tokens is not None:
        backend.take(EngineReport(0.0, kv_tokens=kv_tokens))
    return backend


class Door:
    """Requests enter at it. `told` has what those were told that had to wait, in that order."""

    def __init__(
        self,
        *names: str,
        prices: Mapping[str, float] | None = None,
        kv_tokens: int | None = None,
        **rules: Any,
    ) -> None:
        self.backends = tuple(ready(name, kv_tokens) for name in names)
        self.policy = Priced(prices)
        self.fleet = Fleet((Pool("p", self.backends, self.policy),))
        self.gate = Gate(lambda: self.fleet, Random(1))
        rules = {"enabled": True} | rules
        self.admission = Admission(
            self.gate, lambda: self.fleet, Random(2), self._changed, Rules(**rules)
        )
        self.changes = 0
        self.told: list[tuple[Ticket, Lease | Exception]] = []
        self.leases: dict[Ticket, Lease] = {}

    def _changed(self) -> None:
        self.changes += 1

    def ticket(
        self,
        tokens: int,
        since_s: float = 0.0,
        *,
        name: str = "",
        rank: int = 0,
        deadline_s: float = inf,
        reserve: float = 0.0,
        impatient: bool = True,
        **fields: Any,
    ) -> Ticket:
        fields = {"prompt_tokens": tokens, "stream": True} | fields
        ask = Ask("/v1/completions", **fields)

        def told(outcome: Lease | Exception) -> None:
            self.told.append((ticket, outcome))

        ticket = Ticket(ask, since_s, told, name, rank, deadline_s, reserve, impatient=impatient)
        return ticket

    def enter(self, tokens: int, now_s: float = 0.0, **fields: Any) -> Ticket:
        """A request comes. `leases` has its lease if it is sent at once. Raises Refused."""
        ticket = self.ticket(tokens, now_s, **fields)
        self.come(ticket, now_s)
        return ticket

    def come(self, ticket: Ticket, now_s: float) -> None:
        lease = self.admission.enter(ticket, now_s)
        if lease is not None:
            self.leases[ticket] = lease

    def wake(self, now_s: float) -> list[Ticket]:
        """Returns who is sent. The others are in `told`."""
        outcomes: list[Outcome] = []
        self.admission.wake(now_s, outcomes)
        sent = []
        for ticket, outcome in outcomes:
            ticket.ready(outcome)
            if isinstance(outcome, Lease):
                self.leases[ticket] = outcome
                sent.append(ticket)
        return sent

    def first(self, ticket: Ticket, now_s: float) -> None:
        """Its first token comes."""
        self.leases[ticket].first_token(now_s)

    def finish(self, ticket: Ticket, now_s: float, tokens: int = 1) -> None:
        """Its answer is whole, of so many tokens."""
        lease = self.leases[ticket]
        lease.first_token(now_s)
        lease.tokens(tokens)
        lease.complete(now_s, tokens)

    def open_up(self, now_s: float, place: int = 0) -> None:
        """The first prompt of a backend has its first token."""
        for lease in self.leases.values():
            if lease.backend is self.backends[place] and lease.prefilling and not lease.ended:
                lease.first_token(now_s)
                return
        raise AssertionError(place)

    def stream(self, seconds: float, gap_s: float, now_s: float = 0.0) -> float:
        """All streams go on, with a wake ten times a second. Returns when that ends."""
        due_s = now_s
        for number in range(1, round(seconds / gap_s) + 1):
            at_s = now_s + number * gap_s
            for lease in self.leases.values():
                if lease.first_token_s is not None:
                    lease.tokens(1)
            if at_s >= due_s:
                self.wake(at_s)
                due_s = at_s + 0.1
        return at_s

    @property
    def queue(self) -> Queue:
        return self.admission.lines["p"].queue


def full(*names: str, **rules: Any) -> Door:
    """Each backend has a long prompt before it."""
    door = Door(*names, **rules)
    for _ in names:
        door.enter(FILLS, name="before")
    assert all(backend.own.requests == 1 for backend in door.backends)
    return door


def waiting(queue: Queue, flow: Flow, tokens: int, rank: int = 0, *, first: bool = False) -> Ticket:
    """One more request that waits."""
    ticket = Ticket(Ask("/"), 0.0, lambda _: None, name=flow.name, rank=rank)
    ticket.flow, ticket.tokens = flow, tokens
    queue.add(ticket, first=first)
    return ticket


def send(queue: Queue, ticket: Ticket, tokens: float | None = None) -> None:
    """Send it, and charge its flow for its prompt, or for so many tokens."""
    queue.remove(ticket)
    queue.sent(ticket)
    ticket.flow.charge(ticket.tokens if tokens is None else tokens, 0.0)


OPEN = [ready("open")]


def turns(queue: Queue, rank: int, most: int) -> list[Ticket]:
    """The next ones of a class, where a backend is open that serves each of them."""
    return queue.turns(rank, most, OPEN)


def send_next(queue: Queue) -> Ticket:
    """Send what is next of all classes."""
    rank, _ = queue.ranks()[0]
    ticket = turns(queue, rank, 1)[0]
    send(queue, ticket)
    return ticket


def weighted(queue: Queue, name: str, weight: float) -> Flow:
    """A flow with this weight."""
    flow = queue.flow(name)
    flow.weight = weight
    return flow


def asked(door: Door, tokens: int, now_s: float = 0.0, **fields: Any) -> Forecast:
    ticket = door.ticket(tokens, now_s, **fields)
    ticket.dry = True
    return door.admission.forecast(ticket, now_s)


def lack(door: Door, tokens: int, now_s: float = 0.0, **fields: Any) -> Lack | None:
    found = asked(door, tokens, now_s, **fields)
    assert (found.fate is Fate.WAIT) == (found.lack is not None)
    return found.lack
