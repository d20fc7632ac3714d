"""A session's requests go to one backend, whose cache holds their common prefix.

Consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2016). The load is counted
in tokens. A session goes to its own place on the ring. It goes to the next place while that
backend is unfit or holds too much. So one hot session spreads and does not overload its backend,
and the absence of a backend moves only the sessions of that backend. They come back with it.
"""

from collections.abc import Sequence
from random import Random
from typing import ClassVar, Final

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.policies.least_tokens import LeastTokens
from penstock.balancing.policies.policy import Explanation, Part, Policy, SimplePolicy
from penstock.balancing.ring import Ring

# How far above its fair share of the tokens a backend may be before its sessions move on.
# A spilled turn is prefilled anew. Of the hits of unbounded stickiness, 0.25 (usual where requests
# cost alike) kept 0.90-0.95 and 0.5 kept 0.96-0.97 (tests/sim/conversations.py).
EPSILON: Final = 0.5
# One engine step's budget on an H100 (vLLM's `max_num_batched_tokens`). Nobody waits below one step
# of work. Without it every backend of an idle fleet would be above the mean of zero.
SLACK_TOKENS: Final = 8_192
# Beside a session's own place, which costs 1.
ELSEWHERE: Final = 2.0


class Session(SimplePolicy):
    """Explicit affinity. A request without a key is placed as `least_tokens` would place it."""

    needs_sessions: ClassVar[bool] = True

    def __init__(self, backends: Sequence[Backend]) -> None:
        """`backends` are all of the pool, fit or not. They make the ring."""
        self._ring = Ring({backend.name: backend.weight for backend in backends})
        self._keyless = LeastTokens()

    def home(self, ask: Ask) -> str | None:
        assert ask.session is not None
        return self._ring.home(ask.session)

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        if ask.session is None:
            return self._keyless.choose(fit, ask, now_s, rng)
        by_name, allowed = _allowed(fit)
        for name in self._ring.walk(ask.session):
            candidate = by_name.get(name)
            if candidate is not None and _has_room(candidate, ask, allowed, now_s):
                return candidate
        return self._keyless.choose(fit, ask, now_s, rng)

    def costs(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> Sequence[float]:
        """A session's own place costs 1, and any other one ELSEWHERE."""
        if ask.session is None:
            return self._keyless.costs(fit, ask, now_s)
        by_name, allowed = _allowed(fit)
        for name in self._ring.walk(ask.session):
            candidate = by_name.get(name)
            if candidate is not None and _has_room(candidate, ask, allowed, now_s):
                return [1.0 if backend is candidate else ELSEWHERE for backend in fit]
        return self._keyless.costs(fit, ask, now_s)

    def explain(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> Explanation:
        if ask.session is None:
            return self._keyless.explain(fit, ask, now_s)
        by_name, allowed = _allowed(fit)
        full: dict[Backend, str] = {}
        for name in self._ring.walk(ask.session):
            candidate = by_name.get(name)
            if candidate is None:
                continue
            if _has_room(candidate, ask, allowed, now_s):
                first = f"{name} comes first on the ring for this session"
                parts = [Part(why_not=full.get(backend, first)) for backend in fit]
                parts[fit.index(candidate)] = Part()
                return Explanation([candidate], parts)
            full[candidate] = _why_full(candidate, allowed)
        best = self._keyless.explain(fit, ask, now_s).best
        return Explanation(best, [Part(why_not="" if b in best else full.get(b, "")) for b in fit])

    def follow(self, new: Policy, backends: Sequence[Backend]) -> None:
        assert isinstance(new, Session)
        self._ring = new._ring


def held_tokens(backend: Backend) -> int:
    """The load that is bounded: prompt tokens queued and tokens of open streams."""
    return backend.queued_prefill_tokens + backend.active_decode_tokens


def _allowed(fit: Sequence[Backend]) -> tuple[dict[str, Backend], float]:
    """The backends by name, and how many tokens each may hold for a weight of 1, slack apart.

    Someone of `fit` is at or below the mean, so somebody always has room, unless all who could
    have it failed lately. A penalty for failures counts as tokens there, but not in the mean.
    """
    weight = 0.0
    tokens = 0
    by_name: dict[str, Backend] = {}
    for backend in fit:
        by_name[backend.name] = backend
        weight += backend.weight
        tokens += held_tokens(backend)
    return by_name, (1.0 + EPSILON) * tokens / weight


def _has_room(backend: Backend, ask: Ask, allowed: float, now_s: float) -> bool:
    held = held_tokens(backend) + backend.penalty_tokens(now_s, ask.client)
    return held <= allowed * backend.weight + SLACK_TOKENS


def _why_full(backend: Backend, allowed: float) -> str:
    """Why a backend has no room."""
    held, bound = held_tokens(backend), allowed * backend.weight + SLACK_TOKENS
    if held <= bound:
        return "it failed a short time ago"
    return f"it holds {held:,} tokens, more than its bound of {int(bound):,}"
