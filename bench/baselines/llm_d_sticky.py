"""llm-d's "sticky until saturated" (blog of 2026-08-17), by its shipped constants.

Backends that hold at least 0.8 of the prompt are warm. Unless the least expected TTFT of these
exceeds that of the others by T_MAX_S, only they come into question; of those that do, the one
with the fewest uncached tokens in flight, this request's included.
"""

from typing import Final

from penstock.bench.baselines.baseline import Baseline
from penstock.bench.baselines.view import Seen

WARM_SHARE: Final = 0.8
T_MAX_S: Final = 18.0
PEAK_TOKENS_PER_S: Final = 15_928.0


class LlmDSticky(Baseline):
    """Warm first, until they are too far behind."""

    def allowed(self, backends: list[Seen]) -> list[Seen]:
        arrival = self.view.arrival
        wanted = WARM_SHARE * arrival.prompt_tokens
        warm = [backend for backend in backends if backend.cached_tokens(arrival) >= wanted]
        cold = [backend for backend in backends if backend not in warm]
        if not warm or not cold:
            return backends
        behind_s = (_queue(warm) - _queue(cold)) / PEAK_TOKENS_PER_S
        return backends if behind_s > T_MAX_S else warm

    def cost(self, backend: Seen) -> float:
        return backend.queued_tokens + backend.uncached_tokens(self.view.arrival)


def _queue(backends: list[Seen]) -> int:
    return min(backend.queued_tokens for backend in backends)
