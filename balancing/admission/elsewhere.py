"""Whether a request that waits goes to another pool that can serve it.

Only if it is not refused there: its own may serve it in time, or be back sooner. Those that have
gone before it may have taken what the other one had to give. So this is looked at in the moment in
which it would go.
"""

from collections.abc import Callable
from typing import Final

from penstock.balancing.admission.forecast import Fate, dry_copy
from penstock.balancing.admission.line import Line
from penstock.balancing.admission.queue import is_servable
from penstock.balancing.admission.ticket import Ticket
from penstock.balancing.ask import Ask
from penstock.balancing.computed_prompts import OverContext

# How long one that would have been refused stays where it is before that is looked at again.
STAYS_S: Final = 1.0
# A backend that has failed a request and still serves others may have it again after this time.
# Meanwhile probes have shown most of those that are down.
AGAIN_S: Final = 1.0


class Elsewhere(Exception):
    """A fall-back of its route may take it. It waits until it has gone there."""


def would_refuse(
    fate: Callable[[Ticket, float], Fate],
    ticket: Ticket,
    ask: Ask,
    since_s: float,
    now_s: float,
) -> bool:
    """Whether it would be refused if it came anew, aimed as `ask` is. `since_s`: since when it
    would have waited."""
    try:
        return fate(dry_copy(ticket, ask, since_s), now_s) is Fate.REFUSE
    except (LookupError, OverContext):
        return False


def held_on(line: Line, ticket: Ticket, held_s: float, now_s: float) -> Elsewhere | None:
    """What becomes of one that no backend can serve now, but perhaps a fall-back of its route.
    `held_s`: for how long it has been held. None: it is held on."""
    if now_s >= ticket.stays_until_s and ticket.elsewhere():
        return Elsewhere()
    if held_s >= AGAIN_S:
        ticket.tried = ()
        if not line.held.active:
            ticket.release(now_s)
    return None


def moves(fate: Callable[[Ticket, float], Fate], line: Line, ticket: Ticket, now_s: float) -> bool:
    """Whether it leaves the line that it waits in for the pool that its look chose.

    Not if it would be refused there: its own pool serves it, or is the one that it is held for.
    """
    able = [each for each in line.places.members if each.can_serve]
    if ticket.held_since_s is None and not is_servable(ticket, able):
        return True
    if now_s < ticket.stays_until_s:
        return False
    if would_refuse(fate, ticket, ticket.ask, now_s - ticket.waited_s(now_s), now_s):
        ticket.stays_until_s = now_s + STAYS_S
        return False
    return True
