"""What no router can know, used greedily: every output's length, and the engines from inside.

No bound: it places one request at a time, for the end of all answers and not for their first
tokens. For each engine the time that this request would take, all that is queued there before it,
plus what it takes from those that run: prefill in its way, and decode beside it.
"""

from penstock.bench.baselines.baseline import Baseline
from penstock.bench.baselines.kv_aware import uncached_in_engine
from penstock.bench.baselines.view import Seen
from penstock.bench.sim.profiles import Gpu


class Oracle(Baseline):
    """Least own time plus least delay of others, in seconds of the engine's own law."""

    def cost(self, backend: Seen) -> float:
        arrival = self.view.arrival
        engine = backend.engine
        profile = engine.profile
        assert isinstance(profile, Gpu)
        uncached = uncached_in_engine(backend, arrival)
        sequences = [*engine.sequences]
        queued = sum(max(0, each.prompt_tokens - each.computed) for each in sequences)
        attended = uncached * (arrival.prompt_tokens - uncached / 2)
        prefill_s = (queued + uncached) * profile.token_s + attended * profile.attention_s
        held = sum(each.computed for each in sequences) + arrival.prompt_tokens
        step_s = profile.weights_s + held * profile.kv_token_s
        left = [max(0, each.max_tokens - each.generated) for each in sequences]
        beside = sum(min(each, arrival.output_tokens) for each in left)
        own_s = prefill_s + arrival.output_tokens * step_s
        others_s = len(sequences) * uncached * profile.token_s
        return own_s + others_s + beside * arrival.prompt_tokens * profile.kv_token_s
