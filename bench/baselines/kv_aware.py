"""vllm-router's `kv_aware`: as LMetric, but it knows the engine's cache by its KV events.

Cost: (this request's prefill after credit for cached tokens + prefill under way) times
(requests + 1); the least wins. Events are taken to be immediate.
"""

from penstock.bench.baselines.lmetric import LMetric
from penstock.bench.baselines.view import Seen
from penstock.bench.routing.trace import Arrival, block_hashes


class KvAware(LMetric):
    """Looks into the engine's cache."""

    def cost(self, backend: Seen) -> float:
        uncached = uncached_in_engine(backend, self.view.arrival)
        return (backend.queued_tokens + uncached) * (backend.requests + 1)


def uncached_in_engine(backend: Seen, arrival: Arrival) -> int:
    """Tokens of a prompt that the engine itself would have to compute now."""
    block_tokens = backend.engine.profile.block_tokens
    hits, _ = backend.engine.cache.cached(block_hashes(arrival, block_tokens))
    return max(1, arrival.prompt_tokens - hits * block_tokens)
