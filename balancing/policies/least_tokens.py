"""Fewest tokens waiting: queued prefill still to do plus a share of the active decode.

A prompt token is computed once and holds everyone up until then; a decode token
costs one memory read a step. 1/64 is about the ratio of the two on current GPUs
(bench/RESULTS.md has what it buys over counting requests). Weights scale: a
backend of weight 2 may hold twice the tokens.
"""

from collections.abc import Sequence
from random import Random
from typing import Final

from balancing.ask import Ask
from balancing.backend import Backend
from balancing.policies.policy import cheapest

DECODE_SHARE: Final = 1 / 64


class LeastTokens:
    """The default until the cost in seconds is known."""

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        prompt_tokens = ask.prompt_tokens

        def tokens(backend: Backend) -> float:
            return (
                backend.waiting_tokens(now_s)
                + backend.active_decode_tokens * DECODE_SHARE
                + prompt_tokens
            ) / backend.weight

        return cheapest(fit, tokens, rng)
