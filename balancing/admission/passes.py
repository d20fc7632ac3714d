"""Which requests a wake looks at, to find those that another pool serves.

Each flow has a pass of its own in each class, over what it had there when the pass began. The
passes take turns: one look each. So nobody waits for the looks at what others have sent, however
much that is and however many wakes it takes.
"""

from typing import Final

from penstock.balancing.admission.queue import Queue
from penstock.balancing.admission.ticket import Flow, Ticket
from penstock.balancing.ask import Ask

# All that decides whether there is a place for it, but for its length: what it asks for, of whom
# its length is believed, how its prompts are compared with a context, and its way along its route.
Kind = tuple[str, str | None, str, str | None, int, bool, bool, bool, bool, tuple[object, ...]]
# Its tokens, and what they are estimated from: another model may count them otherwise.
Size = tuple[float, float, float, float]


# So many that have no place are passed over in one turn. With ten thousand of one kind, a wake that
# passed over all of them took 29 ms.
PASSED_OVER_MAX: Final = 16
# A wake looks no more after so many that another pool serves, but would refuse. Each costs a
# prediction: behind 256 flows, 64 of them took 50 ms.
REFUSED_MAX: Final = 8


class Pass:
    """What is left of one flow and class."""

    __slots__ = ("_flow", "_nowhere", "left")

    def __init__(self, flow: Flow, rank: int) -> None:
        self._flow = flow
        self.left = list(flow.queues[rank])[::-1]  # the next one is last
        # Of each kind the last one that has found no place.
        self._nowhere: dict[Kind, Size] = {}

    def next(self) -> Ticket | None:
        """The next one for which there may be a place. None: the next few have none."""
        for _ in range(min(PASSED_OVER_MAX, len(self.left))):
            ticket = self.left.pop()
            if ticket.waits and ticket.flow is self._flow and not self._has_none(ticket):
                return ticket
        return None

    def _has_none(self, ticket: Ticket) -> bool:
        """Whether there is none: one of its kind has found none, and is no longer."""
        size = self._nowhere.get(_kind(ticket))
        if size is None:
            return False
        own = _size(ticket.ask)
        return own[0] >= size[0] and own[1] >= size[1] and own[2] >= size[2] and own[3] >= size[3]

    def found_nothing(self, ticket: Ticket) -> None:
        """There is no place for it."""
        self._nowhere[_kind(ticket)] = _size(ticket.ask)


class Passes:
    """Those over all that one queue holds."""

    __slots__ = ("_last", "_most_turns", "_passes", "_queue", "_refused", "_turn", "_turns")

    def __init__(self, queue: Queue, most_turns: int) -> None:
        """`most_turns`: in one wake."""
        self._queue = queue
        self._most_turns = most_turns
        self._passes: dict[tuple[Flow, int], Pass] = {}
        self._turn: list[Pass] = []  # which have no look yet in this turn; the next one is last
        self._turns = self._refused = 0  # in this wake
        self._last: Pass | None = None

    def clear(self) -> None:
        """Begin anew."""
        self._passes, self._turn, self._last = {}, [], None

    def begin(self) -> None:
        """A wake begins to look. A pass goes on, and where one has ended the next one begins."""
        self._turns = self._refused = 0
        before, self._passes = self._passes, {}
        for rank, backlog in enumerate(self._queue.backlogs):
            for flow in backlog:
                its = before.get((flow, rank))
                goes_on = its is not None and its.left
                self._passes[flow, rank] = its if its is not None and goes_on else Pass(flow, rank)

    def next(self) -> Ticket | None:
        """What to look at next. None: all passes are over, or this wake has had its turns."""
        while self._turns < self._most_turns and self._refused < REFUSED_MAX:
            if not self._turn:
                self._turn = [each for each in self._passes.values() if each.left][::-1]
            if not self._turn:
                return None
            self._turns += 1
            self._last = self._turn.pop()
            ticket = self._last.next()
            if ticket is not None:
                return ticket
        return None

    def found_refusal(self) -> None:
        """What `next` told last would be refused. Others of its kind may have more time."""
        self._refused += 1

    def found_nothing(self, ticket: Ticket) -> None:
        """There is no place for what `next` told last. For the rest of its pass this is so for
        others of its kind that are no shorter."""
        assert self._last is not None
        self._last.found_nothing(ticket)


def _kind(ticket: Ticket) -> Kind:
    ask = ticket.ask
    return (
        ask.pool,
        ask.model,
        ask.client,
        ask.response_id,
        ask.prompts,
        ask.first_pool,
        ask.generates,
        ask.uncut,
        ask.counted is None,
        ticket.way,
    )


def _size(ask: Ask) -> Size:
    first, second = ask.measured if ask.counted is None else ask.counted
    return float(ask.prompt_tokens), first, second, float(ask.media_parts)
