"""Which requests of one line have waited for too long, and are told so.

In a flow the oldest one need not be the first: one that a backend has failed goes before the others
and has its time anew, and clients give different times.
"""

from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

from penstock.balancing.admission.refusal import LATE
from penstock.balancing.admission.ticket import Ticket

# A wake looks at so many.
LOOKS_MAX: Final = 256
# While a request is held its time stands still. One with little time left is looked at again then.
AGAIN_S: Final = 0.5
# The heap may have so many entries of requests that have left, and one for each that waits.
SPARE: Final = 64


class Deadlines:
    """A heap of the times when each is over, as far as is known. It may be later, never earlier."""

    __slots__ = ("_heap", "_last", "_numbers", "_tickets", "unseen")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []  # with the number of each request
        self._last = 0
        self._numbers: dict[Ticket, int] = {}
        self._tickets: dict[int, Ticket] = {}
        self.unseen = False  # the last look ended before it had seen all whose time may be over

    def add(self, ticket: Ticket, now_s: float) -> None:
        """It begins to wait."""
        if ticket.deadline_s == inf:
            return
        self._last += 1
        self._numbers[ticket] = self._last
        self._tickets[self._last] = ticket
        heappush(self._heap, (now_s + _left_s(ticket, now_s), self._last))

    def remove(self, ticket: Ticket) -> None:
        """It waits no more."""
        number = self._numbers.pop(ticket, None)
        if number is None:
            return
        del self._tickets[number]
        if len(self._heap) > 2 * len(self._tickets) + SPARE:
            self._heap = [each for each in self._heap if each[1] in self._tickets]
            heapify(self._heap)

    def over(self, most: int, now_s: float) -> list[Ticket]:
        """Up to so many whose time is over. They leave now."""
        found: list[Ticket] = []
        heap = self._heap
        for _ in range(LOOKS_MAX):
            if not heap or heap[0][0] > now_s or len(found) == most:
                break
            _, number = heappop(heap)
            ticket = self._tickets.get(number)
            if ticket is None:
                continue
            left_s = _left_s(ticket, now_s)
            if left_s < 0.0:
                found.append(ticket)
            else:
                heappush(heap, (now_s + max(left_s, AGAIN_S), number))
        self.unseen = bool(heap) and heap[0][0] <= now_s
        return found


def _left_s(ticket: Ticket, now_s: float) -> float:
    """How much longer it may wait."""
    return LATE * ticket.deadline_s - ticket.waited_s(now_s)
