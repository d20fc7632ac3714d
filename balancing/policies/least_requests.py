"""Fewest requests in flight, scaled by weight: what other balancers call least connections."""

from collections.abc import Sequence
from random import Random

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.policies.policy import Explanation, SimplePolicy, all_cheapest, cheapest


def requests(backend: Backend, ask: Ask, now_s: float) -> float:
    """The requests in flight with this one added. A penalty for failures counts as requests."""
    return backend.requests_in_flight + 1 + backend.penalty_requests(now_s, ask.client)


class LeastRequests(SimplePolicy):
    """Right when requests cost alike. It does not see a prompt of 20,000 tokens."""

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        return cheapest(fit, _costs(fit, ask, now_s), rng)

    def explain(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> Explanation:
        return all_cheapest(fit, _costs(fit, ask, now_s))


def _costs(fit: Sequence[Backend], ask: Ask, now_s: float) -> list[float]:
    return [requests(b, ask, now_s) / b.weight for b in fit]
