"""How much of each KV cache a request leaves free for those of higher classes.

A class below the default one always leaves `admission.reserve`. Each class leaves at least as much
as higher ones were given of the pool's tokens of late, up to LEFT_MAX. So where the caches are
full, a request of a high class seldom waits until a stream has ended. A class that nobody uses
costs nothing.
"""

from collections.abc import Mapping, Sequence
from math import exp
from typing import Final

from penstock.balancing.admission.ticket import LATELY_TAU_S, Flow, Ticket
from penstock.balancing.lease import Lease

# Without it, a high class of 0.3 of the capacity had a p99 TTFT of 0.9 s beside full caches, and
# with it 0.3 s. A tenth instead cost 5 % of the tokens ("Room for higher classes" in
# bench/history/2026-11-admission.md).
LEFT_MAX: Final = 0.03


class Reserve:
    """That of one pool."""

    __slots__ = ("_given", "_given_s")

    def __init__(self) -> None:
        self._given: dict[int, float] = {}  # tokens by class, as they had faded at that time
        self._given_s = 0.0

    def take(self, rank: int, tokens: float, sent_s: float, now_s: float) -> None:
        """A request of this class takes so many tokens more, or fewer if negative.

        `sent_s`: when it was sent.
        """
        fade = _fade(self._given_s, now_s)
        self._given = {each: given * fade for each, given in self._given.items()}
        given = self._given.get(rank, 0.0) + tokens * _fade(sent_s, now_s)
        self._given[rank] = max(0.0, given)
        self._given_s = now_s

    def of(self, ticket: Ticket) -> float:
        """The share of a cache that this request leaves free."""
        if not ticket.rank or ticket.reserve >= LEFT_MAX:
            return ticket.reserve
        higher = sum([given for rank, given in self._given.items() if rank < ticket.rank])
        if not higher:
            return ticket.reserve
        return max(ticket.reserve, min(LEFT_MAX, higher / sum(self._given.values())))

    def reshape(self, ranks: Sequence[int]) -> None:
        """Take other classes. `ranks`: for each old one, the class that its requests have now."""
        before, self._given = self._given, {}
        for rank, given in before.items():
            self._given[ranks[rank]] = self._given.get(ranks[rank], 0.0) + given


def _fade(since_s: float, now_s: float) -> float:
    """What is left by now of what was given then."""
    return exp(min(0.0, since_s - now_s) / LATELY_TAU_S)


class Holdings:
    """What the requests of a class hold of one cache, and will, by flow."""

    __slots__ = ("_at", "_found", "_tickets")

    def __init__(self, tickets: Mapping[Lease, Ticket]) -> None:
        """`tickets`: of the requests that are there now."""
        self._tickets = tickets
        self._at = (-1, -1)  # when that was found, and of which class
        self._found: dict[Flow, float] = {}

    def of(self, rank: int, at: int, shared_tokens: float) -> dict[Flow, float]:
        """The tokens of each flow, with those to come of its answers.

        `at`: the number of the backend's load. Until it changes the same is told again. What
        streams share of their prompts counts once, divided between those that were cached.
        """
        if self._at == (at, rank):
            return self._found
        self._at, self._found = (at, rank), {}
        found = [
            float(lease.ask.prompt_tokens - each.tokens) for lease, each in self._tickets.items()
        ]
        counted = max(0.0, 1.0 - shared_tokens / max(1.0, sum(found)))
        for (lease, each), cached in zip(self._tickets.items(), found, strict=True):
            if each.rank == rank:
                answer = max(each.flow.expect(lease.ask), lease.generated_tokens)
                tokens = each.tokens + cached * counted + answer
                self._found[each.flow] = self._found.get(each.flow, 0.0) + tokens
        return self._found
