"""Whether a held request goes to another pool, and what becomes of it while it does not."""

from collections.abc import Callable

import pytest

from penstock.balancing.admission.elsewhere import AGAIN_S, STAYS_S, held_on, moves, would_refuse
from penstock.balancing.admission.forecast import Fate, blank_line
from penstock.balancing.admission.ticket import Ticket
from penstock.balancing.computed_prompts import OverContext
from penstock.balancing.gate import NoBackend
from tests.unit.balancing.admission.lines import Door

DOOR = Door("a")
LINE = blank_line(DOOR.fleet.pools[0], (0.0,), None)


def held(since_s: float, held_since_s: float) -> Ticket:
    ticket = DOOR.ticket(100, since_s, deadline_s=30.0, impatient=False)
    ticket.held_since_s = held_since_s
    return ticket


class Fates:
    """They say the same each time. `asked`: how long each ticket would have waited by then."""

    def __init__(self, fate: Fate) -> None:
        self._fate = fate
        self.asked: list[float] = []

    def __call__(self, ticket: Ticket, now_s: float) -> Fate:
        self.asked.append(now_s - ticket.since_s)
        return self._fate


def test_what_it_has_waited_before_it_was_held_counts_where_it_would_go() -> None:
    fates = Fates(Fate.WAIT)
    assert moves(fates, LINE, held(since_s=1.0, held_since_s=3.0), now_s=10.0)
    assert fates.asked == [2.0]


def test_one_that_stays_is_not_judged_again_at_once() -> None:
    fates, ticket = Fates(Fate.REFUSE), held(since_s=0.0, held_since_s=0.0)
    ends_s = 10.0 + STAYS_S
    for now_s in (10.0, 10.1, ends_s - 0.1, ends_s):
        assert not moves(fates, LINE, ticket, now_s)
    assert len(fates.asked) == 2


def raises(error: Exception) -> Callable[[Ticket, float], Fate]:
    def fate(ticket: Ticket, now_s: float) -> Fate:
        raise error

    return fate


@pytest.mark.parametrize("error", [NoBackend(), OverContext(100)], ids=["no backend", "too long"])
def test_one_that_is_told_why_as_soon_as_it_goes_is_not_refused_for_load(error: Exception) -> None:
    ticket = held(since_s=0.0, held_since_s=0.0)
    assert not would_refuse(raises(error), ticket, ticket.ask, 0.0, 1.0)


@pytest.mark.parametrize("active", [False, True], ids=["serves others", "is gone"])
def test_after_a_second_only_a_line_that_serves_nobody_holds_one_on(active: bool) -> None:
    """A backend that failed it may have it again. If that serves others, its time counts now."""
    door = Door("a", hold_for_backend_s=60.0)
    ticket = door.ticket(100, deadline_s=30.0, impatient=False)
    ticket.tried = frozenset(door.backends)
    door.come(ticket, 0.0)
    line = door.admission.lines["p"]
    line.held.active = active
    assert held_on(line, ticket, 0.9 * AGAIN_S, 10.0) is None
    assert (len(ticket.tried), ticket.waited_s(10.0)) == (1, 0.0)
    assert held_on(line, ticket, AGAIN_S, 10.0) is None
    assert (len(ticket.tried), ticket.waited_s(15.0)) == (0, 0.0 if active else 5.0)
