"""What a policy is: a value in, a value out.

A policy sees only fit backends that have not failed this request, never none.
It may keep state of its own (round robin does), but it changes no load: the
lease that follows does. Ties must split evenly, or the first backend of every
configuration would be the hottest of its fleet.
"""

from collections.abc import Sequence
from random import Random
from typing import Protocol

from balancing.ask import Ask
from balancing.backend import Backend


class Policy(Protocol):
    """Chooses one of `fit` (at least one) for `ask`."""

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend: ...


def cheapest(fit: Sequence[Backend], costs: Sequence[float], rng: Random) -> Backend:
    """The backend of least cost (one each, in the same order), ties split evenly by reservoir
    sampling."""
    best, lowest, ties = 0, costs[0], 1
    for place in range(1, len(fit)):
        cost = costs[place]
        if cost < lowest:
            best, lowest, ties = place, cost, 1
        elif cost == lowest:
            ties += 1
            if rng.random() * ties < 1.0:
                best = place
    return fit[best]
