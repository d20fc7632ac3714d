"""The less busy of two drawn at random (Mitzenmacher 2001).

Nearly as even as the least of all, and it does not herd when several proxies
share a fleet and see each other's work late.
"""

from collections.abc import Sequence
from random import Random

from balancing.ask import Ask
from balancing.backend import Backend
from balancing.policies.least_requests import requests
from balancing.policies.policy import cheapest


class PowerOfTwo:
    """Draws two different backends, takes the one with fewer requests for its weight."""

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        pair = fit if len(fit) <= 2 else rng.sample(fit, 2)
        return cheapest(pair, [requests(b, ask, now_s) / b.weight for b in pair], rng)
