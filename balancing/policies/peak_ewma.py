"""Measured latency x requests in flight, after Finagle's Peak EWMA.

The latency is the time to first token (to the answer, when not streamed); it
rises at once and decays over 10 s, so that a slowed backend is left quickly and
tried again. A backend without a sample counts with FLOOR_S: cheap enough to be
tried, dear enough that its queue still shows.
"""

from collections.abc import Sequence
from random import Random
from typing import Final

from balancing.ask import Ask
from balancing.backend import Backend
from balancing.policies.policy import cheapest

# The fastest time to first token that a real engine gives (a 1 ms step and two hops).
FLOOR_S: Final = 0.002


class PeakEwmaLatency:
    """Adapts to servers of unknown speed; knows nothing of prompt lengths."""

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        def expected_s(backend: Backend) -> float:
            penalty_s = backend.penalty.read(now_s, ask.client)
            latency_s = max(FLOOR_S, backend.latency.read(now_s) + penalty_s)
            return latency_s * (backend.requests_in_flight + 1) / backend.weight

        return cheapest(fit, [expected_s(backend) for backend in fit], rng)
