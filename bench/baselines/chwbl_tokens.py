"""Consistent hashing with bounded loads, the load counted in tokens.

The key is the first block of the prompt that is not everybody's (KubeAI's PrefixHash, 2025-02), the
bound is 1.25 x the mean (Mirrokni and others, "Consistent Hashing with Bounded Loads", 2018).
"""

from typing import Final

from penstock.balancing.ring import Ring
from penstock.bench.baselines.baseline import Baseline
from penstock.bench.baselines.view import Seen, View

BOUND: Final = 1.25


class ChwblTokens(Baseline):
    """The first on the ring that holds no more than its share of all, this request's included."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._ring = Ring({str(seen.index): 1.0 for seen in view.backends})

    def allowed(self, backends: list[Seen]) -> list[Seen]:
        arrival = self.view.arrival
        # A prompt that shares nothing is a key of its own.
        key = arrival.session or repr(arrival)
        held = {str(each.index): each.queued_tokens + each.held_tokens for each in backends}
        limit = BOUND * (sum(held.values()) + arrival.prompt_tokens) / len(held)
        for name in self._ring.walk(key):
            if name in held and held[name] <= limit:
                return [self.view.backends[int(name)]]
        return backends

    def cost(self, backend: Seen) -> float:
        return backend.queued_tokens + backend.held_tokens
