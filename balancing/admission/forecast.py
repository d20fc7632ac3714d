"""What admission would do with a request: a dry run, by the rules that it decides by.

Nothing is reserved, counted or learnt, and no name that comes by it is kept. The numbers are those
that the request itself would get in this moment.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil
from random import Random
from typing import NamedTuple

from penstock.balancing.admission.lack import Lack
from penstock.balancing.admission.line import Line
from penstock.balancing.admission.places import Places, needs_room
from penstock.balancing.admission.ticket import Flow, Refused, Ticket
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.fleet import Pool
from penstock.balancing.lease import Lease
from penstock.balancing.look import Look


class Fate(StrEnum):
    """What becomes of a request that comes now."""

    AT_ONCE = "at_once"
    WAIT = "wait"
    REFUSE = "refuse"


class Ahead(NamedTuple):
    """Requests of one class that go first. `flows`: of how many tenants or client queues."""

    rank: int
    requests: int
    tokens: int
    flows: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """A dry run. `backend`: where it goes, or would go if that had room.

    `lack`: what it waits for. `predicted_s`: until its first token. `allowed_s`: it is refused if
    `predicted_s`, less a part of its own prefill, is more. If it waits for a backend, the longest
    such wait.
    """

    fate: Fate
    backend: Backend | None
    lack: Lack | None = None
    ahead: list[Ahead] = field(default_factory=list)
    predicted_s: float = 0.0
    allowed_s: float = 0.0
    refused: Refused | None = None


def at_once(line: Line, ticket: Ticket, look: Look, now_s: float) -> Backend | None:
    """Where a request that has just come is sent at once. None: it must wait. Raises Refused."""
    ask = look.ask
    if not needs_room(ask):
        return None if ask.engine and line.beside_waits else line.places.beside(look, ticket, now_s)
    if not line.queue.waiting:
        return look.chosen if line.places.takes(look.chosen, ticket, ask, now_s) else None
    return line.place(ticket, look, now_s) if line.queue.may_pass(ticket) else None


def forecast(
    line: Line, ticket: Ticket, look: Look, now_s: float, *, fate_only: bool = False
) -> Forecast:
    """The dry run of a dry ticket, with its flow, before one line.

    `fate_only`: without what goes first and what it lacks. Behind 256 flows that takes a quarter of
    the time.
    """
    refused = None
    try:
        chosen = at_once(line, ticket, look, now_s)
        if chosen is None:
            line.judge(ticket, look, now_s)
            if not line.queue.waiting:  # it is looked at in the same turn, and may take a detour
                chosen = line.place(ticket, look, now_s)
        if chosen is not None:
            return Forecast(Fate.AT_ONCE, chosen)
    except Refused as error:
        refused = error
    fate = Fate.WAIT if refused is None else Fate.REFUSE
    if fate_only:
        return Forecast(fate, look.chosen)
    return Forecast(
        fate,
        look.chosen,
        lack_of(line, ticket, look, now_s),
        ahead_of(line, ticket),
        refused.predicted_s if refused is not None else ticket.predicted_s,
        line.allowed_s(ticket.rank, ticket.deadline_s, now_s),
        refused,
    )


def forecast_held(line: Line, ticket: Ticket, longest_s: float, now_s: float) -> Forecast:
    """The same for one that no backend can serve now. `longest_s`: how long such requests wait."""
    refused = None
    try:
        line.judge_held(ticket, now_s)
    except Refused as error:
        refused = error
    return Forecast(
        Fate.WAIT if refused is None else Fate.REFUSE,
        None,
        Lack.BACKEND,
        ahead_of(line, ticket),
        refused.predicted_s if refused is not None else 0.0,
        longest_s,
        refused,
    )


def lack_of(line: Line, ticket: Ticket, look: Look, now_s: float) -> Lack:
    """What a request that waits has not got yet at the backend that is chosen for it now."""
    lack = line.places.lack(look.chosen, ticket, look.ask, now_s)
    if lack is not None:
        return lack
    yields = line.must_yield(ticket.rank, line.places.opened(), now_s)
    return Lack.CLASS if yields else Lack.TURN


def ahead_of(line: Line, ticket: Ticket) -> list[Ahead]:
    """What goes before a request that comes now. Where a part of a flow does, the number of its
    requests is estimated by its tokens."""
    found: dict[int, Ahead] = {}
    for flow, rank, tokens in line.queue.ahead(ticket.flow, ticket.rank, ticket.tokens):
        if tokens > 0.0:
            before = found.get(rank, Ahead(rank, 0, 0, 0))
            found[rank] = Ahead(
                rank,
                before.requests + _requests(flow, rank, tokens),
                before.tokens + round(tokens),
                before.flows + 1,
            )
    return [found[rank] for rank in sorted(found)]


def dry_copy(ticket: Ticket, ask: Ask, since_s: float) -> Ticket:
    """A dry ticket for what would become of one that waits if it came anew, aimed as `ask` is.

    `since_s`: when it would have come."""
    return Ticket(
        ask,
        since_s,
        _untold,
        ticket.name,
        ticket.rank,
        ticket.deadline_s,
        ticket.reserve,
        impatient=ticket.impatient,
        dry=True,
    )


def blank_line(pool: Pool, shares: tuple[float, ...], window_s: float | None) -> Line:
    """A line for the dry run of a pool that has none yet. No backend knows it."""
    line = Line(shares, Random(0), _nothing)
    line.places = Places()
    line.places.follow(pool.backends, pool.max_requests, window_s)
    return line


def _requests(flow: Flow, rank: int, tokens: float) -> int:
    return ceil(len(flow.queues[rank]) * min(1.0, tokens / flow.queued_tokens[rank]))


def _untold(outcome: Lease | Exception) -> None:
    """A dry ticket is told nothing."""


def _nothing() -> None:
    """Nobody waits there."""
