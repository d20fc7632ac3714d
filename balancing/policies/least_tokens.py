"""Fewest tokens to wait for: prefill still to do, plus what the open streams cost.

A prompt token is computed once and holds up everyone behind it until then. An
open stream takes a place in every step (N) and reads its KV cache there (K):
1/64 of a prefill token per token held, and as much as 64 prefill tokens for the
place. That is some 200 steps to come (the mean output in Azure's 2023
conversation trace is 211 tokens) at a third of a prefill token each. Without
the second term long streams about to end repel more than fresh ones: it took
the mean E2E of a decode-heavy mix from 1.02-1.09 x `least_requests`' to 1.00 x
(bench/RESULTS.md). Weights scale: weight 2 may hold twice the tokens.
"""

from collections.abc import Sequence
from random import Random
from typing import Final

from balancing.ask import Ask
from balancing.backend import Backend
from balancing.policies.policy import cheapest

HELD_TOKEN_SHARE: Final = 1 / 64
STREAM_TOKENS: Final = 64


class LeastTokens:
    """The default until the cost in seconds is known."""

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        prompt_tokens = ask.prompt_tokens

        def tokens(backend: Backend) -> float:
            return (
                backend.waiting_tokens(now_s)
                + backend.active_decode_tokens * HELD_TOKEN_SHARE
                + backend.streams * STREAM_TOKENS
                + prompt_tokens
            ) / backend.weight

        return cheapest(fit, tokens, rng)
