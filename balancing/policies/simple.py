"""Policies that know no speeds: those of other balancers, and one that counts tokens."""

from collections.abc import Sequence
from random import Random
from typing import Final

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.policies.policy import (
    Explanation,
    LeastPolicy,
    Policy,
    SimplePolicy,
    cheapest,
)

# The fastest time to first token of a real engine (a 1 ms step and two hops).
FLOOR_S: Final = 0.002


class RoundRobin(LeastPolicy):
    """In turn, by weight: stride scheduling (Waldspurger 1995).

    Each backend has a pass. The backend of the lowest pass is next, and its pass grows by 1/weight.
    Passes stay fair when backends leave and return, which an index into a list does not: a backend
    that was away resumes at the lowest pass of the others and does not catch up.
    """

    def __init__(self) -> None:
        self._passes: dict[str, float] = {}
        self._time = 0.0  # the pass of the last choice

    def weigh(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> list[float]:
        return [self._pass_of(backend) for backend in fit]

    def placed(self, chosen: Backend, fit: Sequence[Backend], ask: Ask, now_s: float) -> None:
        at = self._pass_of(chosen)
        self._time = max(self._time, at)
        self._passes[chosen.name] = at + 1.0 / chosen.weight

    def follow(self, new: Policy, backends: Sequence[Backend]) -> None:
        # A backend that was light and is heavy now need not wait out its long turn.
        self._passes = {
            each.name: min(self._passes[each.name], self._time + 1.0 / each.weight)
            for each in backends
            if each.name in self._passes
        }

    def _pass_of(self, backend: Backend) -> float:
        # No pass counts as lower than that of the last choice, which was the lowest.
        return max(self._passes.get(backend.name, 0.0), self._time)


class RandomChoice(SimplePolicy):
    """Every fit backend has the same chance. Any other policy must be better than this one."""

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        return fit[rng.randrange(len(fit))]


class WeightedRandom(SimplePolicy):
    """In proportion to the configured weights."""

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        return rng.choices(fit, [backend.weight for backend in fit])[0]


class LeastRequests(LeastPolicy):
    """Fewest requests in flight, with this one added, scaled by weight.

    A penalty for failures counts as requests. It does not see a prompt of 20,000 tokens.
    """

    def weigh(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> list[float]:
        client = ask.client
        return [
            (each.requests_in_flight + 1 + each.penalty_requests(now_s, client)) / each.weight
            for each in fit
        ]


class PowerOfTwo(LeastRequests):
    """The less busy of two backends drawn at random (Mitzenmacher 2001).

    It is nearly as even as the least busy of all. Several proxies that share a fleet see each
    other's work late. With this policy they do not all choose the same backend.
    """

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        pair = fit if len(fit) <= 2 else rng.sample(fit, 2)
        return cheapest(pair, self.weigh(pair, ask, now_s), rng)

    def explain(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> Explanation:
        return SimplePolicy.explain(self, fit, ask, now_s)


class PeakEwmaLatency(LeastPolicy):
    """Measured latency x requests in flight, after Finagle's Peak EWMA. It sees no prompts' length.

    The latency is the time to first token. For an answer that is not streamed it is the time to the
    answer. It rises at once and decays over 10 s, so that a slowed backend is left quickly and
    tried again. A backend without a sample counts with FLOOR_S. That is low enough for it to be
    tried, and high enough for its queue to count.
    """

    def weigh(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> list[float]:
        return [_expected_s(backend, ask, now_s) for backend in fit]


def _expected_s(backend: Backend, ask: Ask, now_s: float) -> float:
    penalty_s = backend.penalty.read(now_s, ask.client)
    latency_s = max(FLOOR_S, backend.latency.read(now_s) + penalty_s)
    return latency_s * (backend.requests_in_flight + 1) / backend.weight


HELD_TOKEN_SHARE: Final = 1 / 64
STREAM_TOKENS: Final = 128


class LeastTokens(LeastPolicy):
    """Counts tokens and measures nothing.

    It takes the fewest tokens to wait for: the prefill that is still to do, and the cost of the
    open streams.

    A prompt token is computed once, and everything queued behind it waits for that. An open stream
    reads its KV cache in every step. That costs 1/64 of a prefill token for each token held. A
    stream also takes a place in the step. That costs 128 prefill tokens: some 200 steps to come, as
    in Azure's 2023 conversation trace, at about 0.6 of a prefill token each. Without the 128, a
    long stream about to end would look many times as costly as a fresh one. On a decode-heavy mix
    that cost 2-9 % of mean E2E latency against `least_requests`. With the 128 the two tie. Weights
    scale: a backend of weight 2 may hold twice the tokens.
    """

    def weigh(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> list[float]:
        prompt_tokens, client = ask.prompt_tokens * ask.likely, ask.client
        return [
            (
                backend.waiting_tokens(now_s)
                + backend.penalty_tokens(now_s, client)
                + backend.active_decode_tokens * HELD_TOKEN_SHARE
                + (backend.streams + backend.hidden_requests(now_s)) * STREAM_TOKENS
                + prompt_tokens
            )
            / backend.weight
            for backend in fit
        ]

    def costs(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> Sequence[float]:
        return self.weigh(fit, ask, now_s)
