"""The less busy of two backends drawn at random (Mitzenmacher 2001).

It is nearly as even as the least busy of all. Several proxies that share a fleet see each other's
work late. With this policy they do not all choose the same backend.
"""

from collections.abc import Sequence
from random import Random

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.policies.least_requests import requests
from penstock.balancing.policies.policy import SimplePolicy, cheapest


class PowerOfTwo(SimplePolicy):
    """Takes the one with fewer requests, relative to its weight."""

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        pair = fit if len(fit) <= 2 else rng.sample(fit, 2)
        return cheapest(pair, [requests(b, ask, now_s) / b.weight for b in pair], rng)
