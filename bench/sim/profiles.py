"""Speed and size of a simulated engine, in tokens and seconds.

The step time is `step_base_s + prefill tokens / prefill_tokens_per_s + n * step_s_per_stream`
for n decoding streams. The defaults follow vLLM on one large GPU: 8,192 batched tokens, 1,024
sequences, blocks of 16 tokens.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Profile:
    """One engine's speed and capacity."""

    name: str
    prefill_tokens_per_s: float = 10_000.0
    max_batched_tokens: int = 8_192
    step_base_s: float = 0.010
    step_s_per_stream: float = 0.000_05
    max_num_seqs: int = 1_024
    kv_tokens: int = 400_000
    block_tokens: int = 16
    max_model_len: int = 131_072
    serial_prefill: bool = False
    """Prefill one prompt at a time, at exactly `prefill_tokens_per_s`: no base, no streams."""

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


PROFILES: Final = {
    profile.name: profile
    for profile in (
        Profile("default"),
        # Steps small enough that tests wait for sockets, not for tokens.
        Profile("instant", prefill_tokens_per_s=10_000_000.0, step_base_s=0.000_2),
        # 50 tokens/s on every stream however many there are: a steady source of events.
        Profile("steady-50", 1_000_000.0, step_base_s=0.020, step_s_per_stream=0.0),
        # First tokens in strict order of arrival; chunks of 2,048 let streams move meanwhile.
        Profile("serial-10k", max_batched_tokens=2_048, serial_prefill=True),
        # Full after a few requests: for admission, waiting and rejection.
        Profile("small-kv", kv_tokens=8_192, max_num_seqs=128, max_batched_tokens=2_048),
    )
}
