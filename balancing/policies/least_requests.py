"""Fewest requests in flight, scaled by weight: what other balancers call least connections."""

from collections.abc import Sequence
from random import Random

from balancing.ask import Ask
from balancing.backend import Backend
from balancing.policies.policy import cheapest


def requests(backend: Backend, ask: Ask, now_s: float) -> float:
    """What it would have in flight with one more, failures counted as the work they feign."""
    return backend.requests_in_flight + 1 + backend.penalty_requests(now_s, ask.client)


class LeastRequests:
    """Right when requests cost alike; blind to a 20,000-token prompt."""

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        return cheapest(fit, [requests(b, ask, now_s) / b.weight for b in fit], rng)
