"""How much work a workload is: the load 1.0 of an experiment.

A fluid bound on engine time: every prompt token is computed and every output token decoded at
the engine's best rate, as if batches were always full and nothing were in any cache. At load 1.0
that fills the engines exactly, so that steps that are not full make 1.0 more than they can do,
and prefix hits less.
"""

from collections.abc import Sequence

from penstock.bench.routing.trace import Arrival
from penstock.bench.sim.profiles import STREAM_S, Gpu


def fitting(arrivals: Sequence[Arrival], profile: Gpu) -> list[Arrival]:
    """Those that the model has the context for; vLLM refuses the others."""
    limit = profile.context_tokens
    return [each for each in arrivals if each.prompt_tokens + each.output_tokens <= limit]


def engine_s(arrival: Arrival, profile: Gpu) -> float:
    """Engine time of one request at the least, without its share of weights and overhead."""
    prompt, output = arrival.prompt_tokens, arrival.output_tokens
    prefill_s = prompt * profile.token_s + prompt * prompt / 2 * profile.attention_s
    held_tokens = prompt + output / 2
    return prefill_s + output * (profile.token_s + held_tokens * profile.kv_token_s + STREAM_S)


def speedup(arrivals: Sequence[Arrival], profile: Gpu, backends: float, load: float) -> float:
    """How much faster than recorded the trace is to be played for this load."""
    busy_s = sum(engine_s(each, profile) for each in arrivals)
    return load * backends * arrivals[-1].at_s / busy_s
