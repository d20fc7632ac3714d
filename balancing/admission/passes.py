"""Which requests a wake looks at, to find those that another pool serves.

Each flow has a pass of its own in each class, over what it had there when the pass began. The
passes take turns: one look each. So nobody waits for the looks at what others have sent, however
much that is and however many wakes it takes.
"""

from math import inf
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
# Of these looks, so many come first for those whose last one was in vain.
IN_VAIN_MAX: Final = REFUSED_MAX // 2
# So long it is remembered that a flow's last look was in vain, if nothing of it waits. Without that
# 250 tenants that leave and come again ten times a second delayed another one for 16 s.
REMEMBERED_S: Final = 10.0


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
        """There is no place for it. That says nothing of others if a backend has failed it: this
        one may serve them."""
        if not ticket.tried:
            self._nowhere[_kind(ticket)] = _size(ticket.ask)


class Passes:
    """Those over all that one queue holds.

    A pass whose last look was in vain takes no turns with the others. All such passes share a few
    looks of a wake, and all that the others leave. Who had none for the longest time comes first.
    So many flows that can go nowhere do not delay one that can. To look at a request that the other
    pool would refuse costs far more than others, and a wake has few of these looks.
    """

    __slots__ = (
        "_ahead",
        "_asked",
        "_in_vain",
        "_in_vain_looks",
        "_in_vain_turn",
        "_last",
        "_most_turns",
        "_now_s",
        "_others_done",
        "_passes",
        "_queue",
        "_turn",
        "_turns",
    )

    def __init__(self, queue: Queue, most_turns: int) -> None:
        """`most_turns`: in one wake."""
        self._queue = queue
        self._most_turns = most_turns
        self._now_s = -inf  # when this wake began
        self._turns = 0  # in this wake
        self._last: Pass | None = None
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self._ahead: list[Key] = []  # they come first in the first turn, the next one last
        self._passes: dict[Key, Pass] = {}
        self._turn: list[Pass] = []  # which have no look yet in this turn; the next one is last
        self._others_done = False  # in this wake nothing is left of the passes that take turns
        # Whose last look was in vain, the latest one last, and until when that is remembered.
        self._in_vain: dict[Key, float] = {}
        self._in_vain_turn: list[Pass] = []  # of these, who had no look yet; the next one is last
        self._in_vain_looks = 0
        self._asked: list[tuple[Key, Ticket]] = []  # in this wake; it is refused if it waits on

    def renew(self) -> None:
        """More backends may serve them: look at all anew. Those that had no look in this turn come
        first. So all have theirs, also if backends come back one by one."""
        ahead = [each.key for each in self._turn]
        self.clear()
        self._ahead = ahead

    def begin(self, now_s: float) -> None:
        """A wake begins to look. A pass goes on, and where one has ended the next one begins."""
        self._note_refusals()
        self._now_s = now_s
        self._turns = self._in_vain_looks = 0
        self._others_done = False
        before, self._passes = self._passes, {}
        for rank, backlog in enumerate(self._queue.backlogs):
            for flow in backlog:
                its = before.get((flow, rank))
                goes_on = its is not None and its.left
                self._passes[flow, rank] = its if its is not None and goes_on else Pass(flow, rank)
        until_s = now_s + REMEMBERED_S
        self._in_vain = {
            key: until_s if key in self._passes else at_s
            for key, at_s in self._in_vain.items()
            if at_s > now_s
        }
        self._in_vain_turn = self._unfinished(in_vain=True)

    def _note_refusals(self) -> None:
        """Those that the last wake's looks have found. One that has left, and was not told to stay,
        has found a place."""
        for key, ticket in self._asked:
            self._in_vain.pop(key, None)
            if ticket.waits or ticket.stays_until_s > self._now_s:
                self._in_vain[key] = self._now_s + REMEMBERED_S
        self._asked = []

    def _unfinished(self, *, in_vain: bool) -> list[Pass]:
        """Those that are not over, the next one last: those whose last look was in vain, or the
        others."""
        if in_vain:
            found = [self._passes[key] for key in self._in_vain if key in self._passes]
        else:
            found = [each for key, each in self._passes.items() if key not in self._in_vain]
        return [each for each in found if each.left][::-1]

    def _next_turn(self) -> list[Pass]:
        """The passes that take turns, the next one last."""
        turn = self._unfinished(in_vain=False)
        if self._ahead:
            ahead = {key: self._passes[key] for key in self._ahead if key in self._passes}
            turn = [each for each in turn if each.key not in ahead] + list(ahead.values())
            self._ahead = []
        return turn

    def next(self) -> Ticket | None:
        """What to look at next. None: all passes are over, or this wake has had its looks."""
        while self._turns < self._most_turns and len(self._asked) < REFUSED_MAX:
            its = self._next_pass()
            if its is None:
                return None
            self._turns += 1
            self._last = its
            ticket = its.next(self._now_s)
            if ticket is not None:
                return ticket
            self._was_in_vain(its)
        return None

    def _next_pass(self) -> Pass | None:
        if self._in_vain_turn and self._in_vain_looks < IN_VAIN_MAX:
            self._in_vain_looks += 1
            return self._in_vain_turn.pop()
        while not self._others_done:
            while self._turn:
                its = self._turn.pop()
                if its.left and its.key not in self._in_vain:
                    return its
            self._turn = self._next_turn()
            self._others_done = not self._turn
        if not self._in_vain_turn:
            self._in_vain_turn = self._unfinished(in_vain=True)
        return self._in_vain_turn.pop() if self._in_vain_turn else None

    def found_refusal(self, ticket: Ticket) -> None:
        """What `next` told last would be refused, or may be. Others of its kind may have more time.

        It is known when the next wake begins: one that is not has left, and was not told to stay.
        """
        assert self._last is not None
        self._asked.append((self._last.key, ticket))

    def found_place(self) -> None:
        """What `next` told last goes."""
        assert self._last is not None
        if self._in_vain.pop(self._last.key, None) is not None:
            self._others_done = False

    def found_nothing(self, ticket: Ticket) -> None:
        """There is no place for what `next` told last. For the rest of its pass this is so for
        others of its kind that are no shorter."""
        assert self._last is not None
        self._last.found_nothing(ticket)
        self._was_in_vain(self._last)

    def _was_in_vain(self, its: Pass) -> None:
        """Its last look was in vain."""
        self._in_vain.pop(its.key, None)
        self._in_vain[its.key] = self._now_s + REMEMBERED_S


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
