"""Whose turn it is among short prompts behind long ones of their own flow."""

from collections.abc import Collection, Mapping
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final

from penstock.balancing.admission.queue import ANSWER_WEIGHT, is_servable
from penstock.balancing.admission.ticket import Flow, Ticket
from penstock.balancing.backend import Backend

# How many of a flow are seen. That costs a comparison each.
SHORT_SEEN_MAX: Final = 128

# Requests alike in these can be served by the same backends.
Kind = tuple[str | None, Backend | None, frozenset[Backend]]


class ShortTurns:
    """The turns of one sweep. As elsewhere, the flow that was given the fewest tokens is next.

    Flows that rest come last, of these the one whose rest ends first. What waits is listed when its
    flow has its first turn, and once in a sweep. Before, it was listed anew for each flow that had
    had its looks, which took most of the time of a wake with 24 flows.
    """

    __slots__ = ("_below", "_dropped", "_flows", "_heap", "_opened", "_rank", "_servable", "_short")

    def __init__(
        self,
        rank: int,
        below: Mapping[Flow, float],
        resting: Mapping[Flow, float],
        opened: Collection[Backend],
    ) -> None:
        """`below`: the flows, and how many tokens their short prompts have at most.

        `resting`: until when. `opened`: the backends that take prompts.
        """
        self._rank = rank
        self._below = below
        self._opened = opened
        self._flows = list(below)
        self._heap = [
            (resting.get(flow, 0.0), flow.served, number) for number, flow in enumerate(below)
        ]
        heapify(self._heap)
        self._dropped: set[Flow] = set()
        self._short: dict[Flow, list[Ticket]] = {}  # what is left of each, the next one last
        self._servable: dict[Kind, bool] = {}

    def next(self) -> Ticket | None:
        """The next one that one of the backends may serve. It counts as sent after that."""
        while self._heap:
            rests_until_s, served, number = heappop(self._heap)
            flow = self._flows[number]
            ticket = None if flow in self._dropped else self._next_of(flow)
            if ticket is not None:
                charge = ticket.tokens + ANSWER_WEIGHT * ticket.answer_tokens
                heappush(self._heap, (rests_until_s, served + charge / flow.weight, number))
                return ticket
        return None

    def drop(self, flow: Flow) -> None:
        """It has no more turns."""
        self._dropped.add(flow)

    def has_others(self, flows: Collection[Flow]) -> bool:
        """Whether others than these would have a turn. There are no turns after that."""
        self._dropped.update(flows)
        return self.next() is not None

    def _next_of(self, flow: Flow) -> Ticket | None:
        short = self._short.get(flow)
        if short is None:
            below = self._below[flow]
            seen = islice(flow.queues[self._rank], SHORT_SEEN_MAX)
            short = self._short[flow] = [each for each in seen if each.tokens < below][::-1]
        while short:
            ticket = short.pop()
            if self._is_servable(ticket):
                return ticket
        return None

    def _is_servable(self, ticket: Ticket) -> bool:
        """Asks the backends once for each kind."""
        kind = (ticket.ask.model, ticket.only, frozenset(ticket.tried))
        known = self._servable.get(kind)
        if known is None:
            known = self._servable[kind] = is_servable(ticket, self._opened)
        return known
