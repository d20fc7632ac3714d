"""A session's requests to one backend, whose cache holds their common prefix.

Consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2016),
the load counted in tokens: a session goes to its own place on the ring, and on
to the next one while that backend is unfit or holds too much. So one hot
session spreads instead of drowning its backend, and an absence moves only the
sessions of who is absent; they come back with it.
"""

from collections.abc import Sequence
from random import Random
from typing import Final

from balancing.ask import Ask
from balancing.backend import Backend
from balancing.policies.least_tokens import LeastTokens
from balancing.ring import Ring

# How far above its fair share of the tokens a backend may be before its sessions move on.
# A spilled turn is prefilled anew: of the hits of unbounded stickiness 0.25, usual where
# requests cost alike, kept 0.90-0.95 and 0.5 kept 0.96-0.97 (tests/sim/conversations.py).
EPSILON: Final = 0.5
# One engine step's budget on an H100 (vLLM's `max_num_batched_tokens`): below one step
# of work nobody waits, and an idle fleet has a mean of zero that everyone is above.
SLACK_TOKENS: Final = 8_192


class Session:
    """Explicit affinity. A request without a key is placed as `least_tokens` would."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        """`backends` are all of the pool, fit or not: the ring is made once, of them."""
        self._ring = Ring({backend.name: backend.weight for backend in backends})
        self._keyless = LeastTokens()

    def home(self, session: str) -> str:
        """The name of the backend that a session belongs to, fit or not."""
        return self._ring.home(session)

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        if ask.session is None:
            return self._keyless.choose(fit, ask, now_s, rng)
        weight = 0.0
        tokens = 0
        by_name: dict[str, Backend] = {}
        for backend in fit:
            by_name[backend.name] = backend
            weight += backend.weight
            tokens += held_tokens(backend)
        # Someone of `fit` is at or below the mean, so somebody is always taken, unless all
        # who could be have failed lately. What failures feign is nobody's share to hold.
        allowed = (1.0 + EPSILON) * tokens / weight
        for name in self._ring.walk(ask.session):
            candidate = by_name.get(name)
            if candidate is not None and (
                held_tokens(candidate) + candidate.penalty_tokens(now_s, ask.client)
                <= allowed * candidate.weight + SLACK_TOKENS
            ):
                return candidate
        return self._keyless.choose(fit, ask, now_s, rng)


def held_tokens(backend: Backend) -> int:
    """The load that is bounded: prompt tokens queued and tokens of open streams."""
    return backend.queued_prefill_tokens + backend.active_decode_tokens
