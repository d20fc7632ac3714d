"""Speed and size of a simulated engine, in tokens and seconds.

Two laws of a step's time: `Profile`, a straight line that tests can foretell, and `Gpu`, fitted
to measurements of models on GPUs.
"""

from dataclasses import dataclass, replace
from typing import Final


@dataclass(slots=True)
class Work:
    """What one step computes."""

    prefill_tokens: int = 0
    attended_tokens2: float = 0.0
    """Prefill tokens x the tokens that each attends to, on average."""
    decodes: int = 0
    held_tokens: int = 0
    """KV tokens that the decodes read."""

    @property
    def tokens(self) -> int:
        return self.prefill_tokens + self.decodes

    def add(self, count: int, computed: int, *, decodes: bool) -> None:
        """`count` tokens of a sequence that has `computed` before them."""
        if decodes and count == 1:
            self.decodes += 1
            self.held_tokens += computed
        else:
            self.prefill_tokens += count
            self.attended_tokens2 += count * (computed + count / 2)


@dataclass(frozen=True, slots=True)
class Profile:
    """One engine's speed and capacity.

    A step takes `step_base_s + prefill tokens / prefill_tokens_per_s + n * step_s_per_stream`
    for n decoding streams. The defaults follow vLLM on one large GPU: 8,192 batched tokens,
    1,024 sequences, blocks of 16 tokens.
    """

    name: str
    prefill_tokens_per_s: float = 10_000.0
    max_batched_tokens: int = 8_192
    step_base_s: float = 0.010
    step_s_per_stream: float = 0.000_05
    max_num_seqs: int = 1_024
    kv_tokens: int = 400_000
    block_tokens: int = 16
    max_model_len: int = 131_072
    prefix_caching: bool = False
    """Find the beginnings of prompts in the KV cache (vLLM's default)."""
    noise: float = 0.0
    """Of a step's time: the standard deviation of its logarithm."""
    api_s: float = 0.0
    """The API server's time for a request before the scheduler has it, one after the other."""

    def __post_init__(self) -> None:
        assert self.prefill_tokens_per_s > 0
        assert self.step_base_s > 0, "a step without prefill must take time too"
        assert self.max_num_seqs < self.max_batched_tokens, "a step must fit every stream"
        assert self.kv_tokens >= self.block_tokens

    @property
    def kv_blocks(self) -> int:
        return self.kv_tokens // self.block_tokens

    @property
    def context_tokens(self) -> int:
        """The longest prompt that can ever be served: it must fit the KV cache whole."""
        return min(self.max_model_len, self.kv_blocks * self.block_tokens)

    def step_s(self, work: Work) -> float:
        prefill_s = work.prefill_tokens / self.prefill_tokens_per_s
        return self.step_base_s + prefill_s + work.decodes * self.step_s_per_stream


# CPU work of a step besides the model: scheduling, sampling; 1 to 3 ms in vLLM.
OVERHEAD_S: Final = 0.0015
# Sampling and detokenizing, a stream and step.
STREAM_S: Final = 0.000_005


@dataclass(frozen=True, slots=True)
class Gpu(Profile):
    """A model on GPUs: linear layers, attention over the prompt, and the KV read by decodes.

    `weights_s` is the time to read the weights, the floor of a step; `token_s` the linear
    layers' time per token; `attention_s` per pair of tokens; `kv_token_s` to read a token's KV.
    Linear layers and all-reduce are sums of medians that Vidur measured on A100 and H100, KV
    the bytes of a token over 80 % of the memory's speed; attention is inferred from 400 (H100)
    or 180 (A100) effective TFLOP/s.
    """

    weights_s: float = 0.0
    token_s: float = 0.0
    attention_s: float = 0.0
    kv_token_s: float = 0.0

    def step_s(self, work: Work) -> float:
        return (
            OVERHEAD_S
            + max(self.weights_s, self.token_s * work.tokens)
            + self.attention_s * work.attended_tokens2
            + self.kv_token_s * work.held_tokens
            + STREAM_S * work.decodes
        )


def slowed(profile: Gpu) -> Gpu:
    """The same at half the speed."""
    return replace(
        profile,
        name=f"{profile.name}-slow",
        weights_s=2 * profile.weights_s,
        token_s=2 * profile.token_s,
        attention_s=2 * profile.attention_s,
        kv_token_s=2 * profile.kv_token_s,
    )


def _gpu(
    name: str, weights_ms: float, token_us: float, pair_ns: float, kv_us: float, kv_tokens: int
) -> Gpu:
    return Gpu(
        name,
        prefill_tokens_per_s=1e6 / token_us,
        max_batched_tokens=2_048 if name.endswith("a100") else 8_192,  # vLLM's defaults
        max_num_seqs=256,
        kv_tokens=kv_tokens,
        prefix_caching=True,
        weights_s=weights_ms / 1e3,
        token_s=token_us / 1e6,
        attention_s=pair_ns / 1e9,
        kv_token_s=kv_us / 1e6,
    )


GPUS: Final = {
    profile.name: profile
    for profile in (
        _gpu("8b-1xh100", 5.9, 21.6, 1.31, 0.049, 390_000),
        _gpu("8b-1xa100", 9.7, 66.6, 2.9, 0.080, 390_000),
        _gpu("70b-4xh100", 14.3, 54.4 + 12.4, 1.64, 0.031, 400_000),
        _gpu("70b-8xh100", 8.4, 29.7 + 12.6, 0.82, 0.015, 1_150_000),
        _gpu("70b-4xa100", 24.9, 156.0 + 23.6, 3.6, 0.050, 400_000),
        _gpu("70b-8xa100", 14.3, 85.6 + 26.4, 1.8, 0.025, 1_150_000),
    )
}

PROFILES: Final[dict[str, Profile]] = {
    **GPUS,
    **{
        profile.name: profile
        for profile in (
            Profile("default"),
            # Steps small enough that tests wait for sockets, not for tokens.
            Profile("instant", prefill_tokens_per_s=10_000_000.0, step_base_s=0.000_2),
            # 50 tokens/s on every stream however many there are: a steady source of events.
            Profile("steady-50", 1_000_000.0, step_base_s=0.020, step_s_per_stream=0.0),
        )
    },
}
