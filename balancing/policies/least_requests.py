"""Fewest requests in flight, scaled by weight: what other balancers call least connections."""

from collections.abc import Sequence
from random import Random

from balancing.ask import Ask
from balancing.backend import Backend
from balancing.policies.policy import cheapest


class LeastRequests:
    """Right when requests cost alike; blind to a 20,000-token prompt."""

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        return cheapest(fit, lambda b: (b.requests_in_flight + 1) / b.weight, rng)
