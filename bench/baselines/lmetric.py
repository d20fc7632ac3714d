"""LMetric: new prefill tokens times batch size, no weight to tune (arXiv 2603.15202, abstract)."""

from penstock.bench.baselines.baseline import Baseline
from penstock.bench.baselines.view import Seen


class LMetric(Baseline):
    """Uncached tokens, queued ones included, times the requests that would then be there."""

    def cost(self, backend: Seen) -> float:
        tokens = backend.queued_tokens + backend.uncached_tokens(self.view.arrival)
        return tokens * (backend.requests + 1)
