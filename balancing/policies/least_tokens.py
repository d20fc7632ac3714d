"""Fewest tokens to wait for: prefill still to do, plus what the open streams cost.

A prompt token is computed once and holds up everyone behind it until then. An
open stream reads its KV cache in every step (K: 1/64 of a prefill token per
token held) and takes a place in it (N: 128 prefill tokens for the place, some
200 steps to come, as in Azure's 2023 conversation trace, at about 0.6 of a
prefill token each). With K alone long streams about to end repel more than
fresh ones: on a decode-heavy mix that cost 2-9 % of mean E2E latency against
`least_requests`; with N they tie (bench/RESULTS.md). Weights scale: a backend
of weight 2 may hold twice the tokens.
"""

from collections.abc import Sequence
from random import Random
from typing import Final

from balancing.ask import Ask
from balancing.backend import Backend
from balancing.policies.policy import cheapest

HELD_TOKEN_SHARE: Final = 1 / 64
STREAM_TOKENS: Final = 128


class LeastTokens:
    """The default until the cost in seconds is known."""

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        prompt_tokens, client = ask.prompt_tokens * ask.likely, ask.client

        def tokens(backend: Backend) -> float:
            return (
                backend.waiting_tokens(now_s)
                + backend.penalty_tokens(now_s, client)
                + backend.active_decode_tokens * HELD_TOKEN_SHARE
                + (backend.streams + backend.hidden_requests(now_s)) * STREAM_TOKENS
                + prompt_tokens
            ) / backend.weight

        return cheapest(fit, [tokens(backend) for backend in fit], rng)
