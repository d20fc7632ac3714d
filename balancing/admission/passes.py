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
# Whose pass it is: a flow, and the class.
Key = tuple[Flow, int]
# Its tokens, and what they are estimated from: another model may count them otherwise.
Size = tuple[float, float, float, float]


# So many that have no place are passed over in one turn. With ten thousand of one kind, a wake that
# passed over all of them took 29 ms.
PASSED_OVER_MAX: Final = 16
# A wake looks no more after so many that another pool serves, but would refuse, or may. Each costs
# a prediction: behind 256 flows, 64 of them took 50 ms.
REFUSED_MAX: Final = 12


class Pass:
    """What is left of one flow and class."""

    __slots__ = ("_nowhere", "key", "left")

    def __init__(self, flow: Flow, rank: int) -> None:
        self.key: Key = flow, rank
        self.left = list(flow.queues[rank])[::-1]  # the next one is last
        # Of each kind the last one that has found no place.
        self._nowhere: dict[Kind, Size] = {}

    def next(self, now_s: float) -> Ticket | None:
        """The next one for which there may be a place. None: the next few have none."""
        for _ in range(min(PASSED_OVER_MAX, len(self.left))):
            ticket = self.left.pop()
            here = ticket.waits and ticket.flow is self.key[0]
            if here and now_s >= ticket.stays_until_s and not self._has_none(ticket):
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
    """Those over all that one queue holds.

    To look at a request that the other pool would refuse costs far more, and a wake has few of
    these looks. A pass whose last look found a refusal takes no turns with the others. All such
    passes share half of these looks: who had none for the longest time comes first.
    """

    __slots__ = (
        "_asked",
        "_last",
        "_most_turns",
        "_passes",
        "_queue",
        "_refused",
        "_refused_looks",
        "_refused_turn",
        "_turn",
        "_turns",
    )

    def __init__(self, queue: Queue, most_turns: int) -> None:
        """`most_turns`: in one wake."""
        self._queue = queue
        self._most_turns = most_turns
        self._passes: dict[Key, Pass] = {}
        self._turn: list[Pass] = []  # which have no look yet in this turn; the next one is last
        self._turns = 0  # in this wake
        self._refused: dict[Key, None] = {}  # whose last look was such a one, the latest one last
        self._refused_turn: list[Pass] = []  # the same as `_turn`, of these
        self._refused_looks = 0
        self._asked: list[tuple[Key, Ticket]] = []  # in this wake; it is refused if it waits on
        self._last: Pass | None = None

    def clear(self) -> None:
        """Begin anew."""
        self._passes, self._turn, self._last = {}, [], None
        self._refused, self._refused_turn, self._asked = {}, [], []

    def begin(self) -> None:
        """A wake begins to look. A pass goes on, and where one has ended the next one begins."""
        self._turns = self._refused_looks = 0
        before, self._passes = self._passes, {}
        for rank, backlog in enumerate(self._queue.backlogs):
            for flow in backlog:
                its = before.get((flow, rank))
                goes_on = its is not None and its.left
                self._passes[flow, rank] = its if its is not None and goes_on else Pass(flow, rank)
        for key, ticket in self._asked:
            self._refused.pop(key, None)
            if ticket.waits:
                self._refused[key] = None
        self._asked = []
        self._refused = {key: None for key in self._refused if key in self._passes}
        self._refused_turn = [self._passes[key] for key in self._refused][::-1]

    def next(self, now_s: float) -> Ticket | None:
        """What to look at next. None: all passes are over, or this wake has had its looks."""
        while self._turns < self._most_turns and len(self._asked) < REFUSED_MAX:
            its = self._next_pass()
            if its is None:
                return None
            self._turns += 1
            self._last = its
            ticket = its.next(now_s)
            if ticket is not None:
                return ticket
        return None

    def _next_pass(self) -> Pass | None:
        if self._refused_turn and self._refused_looks < REFUSED_MAX // 2:
            self._refused_looks += 1
            return self._refused_turn.pop()
        if not self._turn:
            self._turn = [each for each in self._passes.values() if each.left][::-1]
        while self._turn:
            its = self._turn.pop()
            if its.key not in self._refused:
                return its
        if not self._refused_turn:  # there are no others
            left = [self._passes[key] for key in self._refused if self._passes[key].left]
            self._refused_turn = left[::-1]
        return self._refused_turn.pop() if self._refused_turn else None

    def found_refusal(self, ticket: Ticket) -> None:
        """What `next` told last would be refused, or may be. Others of its kind may have more time.

        It is known when the next wake begins: one that is not has left.
        """
        assert self._last is not None
        self._asked.append((self._last.key, ticket))

    def found_place(self) -> None:
        """What `next` told last goes."""
        assert self._last is not None
        self._refused.pop(self._last.key, None)

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
