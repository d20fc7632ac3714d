"""NVIDIA Dynamo's KV router, approximate mode: its documented linear cost, scale 1, no temperature.

Cost in blocks: prefill under way + prompt - overlap, and the blocks of all that is active, which a
request is from its placing to its end, + the prompt.
"""

from penstock.bench.baselines.baseline import Baseline
from penstock.bench.baselines.view import Seen


class Dynamo(Baseline):
    """Prefill and decode weigh the same, in tokens (blocks of one size make no difference)."""

    def cost(self, backend: Seen) -> float:
        arrival = self.view.arrival
        prefill = backend.queued_tokens + backend.uncached_tokens(arrival)
        return prefill + backend.active_tokens + arrival.prompt_tokens
