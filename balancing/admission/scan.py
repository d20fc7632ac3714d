"""One look at what waits in a line, in the order of the turns, while there is room somewhere.

It tries few, because each try is a choice of a backend.
"""

from collections.abc import Callable
from typing import Final

from penstock.balancing.admission.line import Line
from penstock.balancing.admission.short_turns import ShortTurns
from penstock.balancing.admission.ticket import Flow, Ticket
from penstock.balancing.backend import Backend
from penstock.balancing.lease import Lease
from penstock.balancing.look import Look

# How many that wait are looked at in a wake, in the order of their turns. Of 8, 24 and 64, eight
# cost the least and sent as many (bench/history/2026-11-admission.md, B).
SCAN: Final = 8
# Beside other flows one flow gets so many looks that find no room. Each looks at all backends. With
# 64 of them a look takes 0.1 ms, and streams wait meanwhile.
SCAN_BESIDE: Final = 2
# A wake has so many looks, and some more for short prompts.
LOOKS_MAX: Final = 24
BACKENDS_LOOKED_AT_MAX: Final = 512
# Of these, so many are for flows that rest.
RESTING_MAX: Final = 8
# Short prompts behind long ones get extra looks: one part of so many of the usual number.
SHORT_PART: Final = 4
# A prompt with so little of the tokens may pass longer ones of its own flow if they find no room.
# Before, a few long prompts kept all that came after them waiting ("Short prompts behind long ones"
# in bench/history/2026-11-admission.md). With an eighth, the longest quarter of `uniform` got less
# than half of its part at twice the capacity.
SHORT: Final = 1.0 / 32.0
# With more flows than that, those that found no room rest, so that all are looked at in turn.
FLOWS_SEEN: Final = LOOKS_MAX // SCAN_BESIDE
# A wake that sent nothing is not repeated for so long, if no other place has opened since.
FUTILE_S: Final = 0.1
# A flow whose short prompts find no room comes last for so long, times the flows of its class. A
# wake may have looks for one flow only, and wakes that send nothing are up to twice FUTILE_S apart.
SHORT_REST_S: Final = 2 * FUTILE_S

Outcome = tuple[Ticket, Lease | Exception]


def place(line: Line, ticket: Ticket, look: Look, now_s: float, *, owed: bool) -> Backend | None:
    """`Line.place`. `owed`: its class is owed its share. So it may use the room that it leaves to
    higher classes, until it has about that share of the cache. Otherwise they take that room again
    and again, and it never has its share."""
    if not owed:
        return line.place(ticket, look, now_s)
    ticket.owed = line.queue.shares[ticket.rank]
    try:
        return line.place(ticket, look, now_s)
    finally:
        ticket.owed = 0.0


class Scan:
    """`found`: some were sent or refused. `unseen`: others might be, too, and had no look."""

    __slots__ = (
        "_attempt",
        "_attempt_owed",
        "_failed",
        "_for_resting",
        "_for_short",
        "_least",
        "_left",
        "_line",
        "_now_s",
        "_opened",
        "_outcomes",
        "_tired",
        "found",
        "unseen",
    )

    def __init__(
        self,
        line: Line,
        opened: frozenset[Backend],
        attempt: Callable[[Ticket, float], Lease | Exception | None],
        attempt_owed: Callable[[Ticket, float], Lease | Exception | None],
        outcomes: list[Outcome],
        now_s: float,
    ) -> None:
        """`opened`: the backends that take prompts. `attempt` sends a ticket, if it has room.
        `attempt_owed`: the same for one whose class is owed its share.

        What becomes of each is added to `outcomes`.
        """
        self._line = line
        self._opened = opened
        self._attempt = attempt
        self._attempt_owed = attempt_owed
        self._outcomes = outcomes
        self._now_s = now_s
        backends = max(1, len(line.places.members))
        self._left = max(SCAN, min(LOOKS_MAX, BACKENDS_LOOKED_AT_MAX // backends))
        self._for_resting = min(RESTING_MAX, self._left // 2)
        self._for_short = self._left // SHORT_PART
        self._failed: dict[Flow, int] = {}  # looks of the class that found no room
        self._tired: set[Flow] = set()  # those of the class that have had their tries
        self._least: dict[Flow, int] = {}  # the tokens of their shortest one that found no room
        self.found = self.unseen = False

    def run(self) -> None:
        """Look at each class. Flows that rest come last: else others would not be looked at.

        If there are too few looks for all, flows that were looked at rest. So the next wakes look
        at the others, until all have had a look.
        """
        line, before, seen = self._line, len(self._outcomes), list[tuple[Flow, int]]()
        for rank, due in line.queue.ranks():
            if not due and line.must_yield(rank, self._opened, self._now_s):
                break
            resting = line.looks.resting(rank, self._now_s)
            self._failed, self._tired, self._least = {}, set(), {}
            self._sweep(rank, resting, LOOKS_MAX, due=due)
            self.unseen = self.unseen or not self._left
            if resting and not due:
                left = self._left
                self._sweep(rank, set(), self._for_resting, due=due)
                self._for_resting -= left - self._left
            if not due:
                self._sweep_short(rank)
            seen += [(flow, rank) for flow in self._failed]
        if self.unseen:
            for flow, rank in seen:
                line.looks.rest(flow, rank, self._now_s + FUTILE_S)
        self.found = len(self._outcomes) > before

    def _sweep(self, rank: int, without: set[Flow], most: int, *, due: bool) -> None:
        """Try some of a class, but of some flows none. At most so many looks."""
        line, first = self._line, True
        least = max(0, self._left - most)
        while self._left > least and line.places.takes_prompts():
            known = len(self._tired)
            looks = self._left - least
            turns = line.queue.turns(rank, looks, self._opened, self._tired | without)
            self._try_all(turns, first=first, due=due)
            first = False
            if due or len(self._tired) == known:
                break  # else some were left out of the list, and others may come instead

    def _try_all(self, turns: list[Ticket], *, first: bool, due: bool) -> None:
        """Try these, but no more of a flow than a few that find no room.

        `first`: these are next in their class. `due`: only one may be sent, that is owed.
        """
        line, failed = self._line, self._failed
        first = first and not due
        for ticket in turns:
            flow = ticket.flow
            if flow in self._tired or (due and not line.queue.is_owed(ticket)):
                continue
            if not line.places.takes_prompts():
                break
            self._left -= 1
            attempt = self._attempt_owed if due else self._attempt
            outcome = attempt(ticket, self._now_s)
            if outcome is not None:
                self._outcomes.append((ticket, outcome))
                if due:
                    break
                continue
            if first:
                line.keep_place(ticket, self._now_s)
            first = False
            failed[flow] = failed.get(flow, 0) + 1
            self._least[flow] = min(self._least.get(flow, ticket.tokens), ticket.tokens)
            flows = len(line.queue.backlogs[ticket.rank])
            if failed[flow] == (SCAN if flows == 1 else SCAN_BESIDE):
                self._tired.add(flow)
            if flows > FLOWS_SEEN:
                self._tired.add(flow)
                line.looks.rest(flow, ticket.rank, self._now_s + FUTILE_S * flows / FLOWS_SEEN)

    def _sweep_short(self, rank: int) -> None:
        """Try much shorter ones of those flows whose next ones have found no room.

        If there are too few looks for all these flows, those that had some rest. Without that, a
        flow that was given little, with two that find no room, kept those of all others waiting.
        """
        if not self._least or not self._for_short:
            return
        line = self._line
        least = self._least
        flows = [flow for flow in line.queue.backlogs[rank] if flow in least]
        below = {flow: SHORT * least[flow] for flow in flows}
        resting = line.looks.resting_short(rank, self._now_s)
        turns = ShortTurns(rank, below, resting, self._opened)
        failed = self._try_short(turns)
        if not self._for_short and turns.has_others(failed):
            until_s = self._now_s + SHORT_REST_S * len(line.queue.backlogs[rank])
            for flow in failed:
                line.looks.rest_short(flow, rank, until_s)

    def _try_short(self, turns: ShortTurns) -> dict[Flow, int]:
        """Try these, but beside other flows no more of one than a few that find no room.

        Returns how many of each flow found none.
        """
        failed: dict[Flow, int] = {}
        tries = self._left + self._for_short
        while tries and self._for_short and self._line.places.takes_prompts():
            ticket = turns.next()
            if ticket is None:
                break
            tries -= 1
            outcome = self._attempt(ticket, self._now_s)
            if outcome is not None:
                self._outcomes.append((ticket, outcome))
                continue
            self._for_short -= 1
            flow = ticket.flow
            failed[flow] = failed.get(flow, 0) + 1
            if failed[flow] == SCAN_BESIDE and len(self._least) > 1:
                turns.drop(flow)
                tries = self._left + self._for_short  # the others have theirs
        return failed
