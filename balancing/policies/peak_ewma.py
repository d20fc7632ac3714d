"""Measured latency x requests in flight, after Finagle's Peak EWMA.

The latency is the time to first token. For an answer that is not streamed it is the time to the
answer. It rises at once and decays over 10 s, so that a slowed backend is left quickly and tried
again. A backend without a sample counts with FLOOR_S. That is low enough for it to be tried, and
high enough for its queue to count.
"""

from collections.abc import Sequence
from random import Random
from typing import Final

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.policies.policy import Explanation, SimplePolicy, all_cheapest, cheapest

# The fastest time to first token of a real engine (a 1 ms step and two hops).
FLOOR_S: Final = 0.002


class PeakEwmaLatency(SimplePolicy):
    """Adapts to servers of unknown speed. It does not see the length of prompts."""

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        return cheapest(fit, [_expected_s(backend, ask, now_s) for backend in fit], rng)

    def explain(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> Explanation:
        return all_cheapest(fit, [_expected_s(backend, ask, now_s) for backend in fit])


def _expected_s(backend: Backend, ask: Ask, now_s: float) -> float:
    penalty_s = backend.penalty.read(now_s, ask.client)
    latency_s = max(FLOOR_S, backend.latency.read(now_s) + penalty_s)
    return latency_s * (backend.requests_in_flight + 1) / backend.weight
