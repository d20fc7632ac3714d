"""Conversations in virtual time on engines with a prefix cache: what affinity is for.

Live conversations of 20 turns over 8 backends, a new one for each that ends. A
turn adds 20-600 tokens of question and 20-600 of answer to the prompt; answers
come at 40 tokens/s, the next question after a pause of 15 s in the mean. An
engine prefills one prompt at a time at 10,000 tokens/s, only what its cache
lacks; the cache keeps the longest prefix of each conversation and drops the
least recently used ones beyond 400,000 tokens (an 8B model on an 80 GB card).
Choices are made by the real gate on real leases.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar, Final

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend, State
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.gate import Gate
from penstock.balancing.lease import Reason
from penstock.balancing.policies.policy import Explanation, Part, Policy
from penstock.balancing.policies.session import Ring, held_tokens

BACKENDS: Final = 8
TURNS: Final = 20
PREFILL_TOKENS_PER_S: Final = 10_000.0
DECODE_TOKENS_PER_S: Final = 40.0
PAUSE_S: Final = 15.0
CACHE_TOKENS: Final = 400_000


class Sticky:
    """Perfect stickiness: the session's own backend, whatever its load."""

    needs_sessions: ClassVar[bool] = True
    needs_prefixes: ClassVar[bool] = False
    costs_seconds: ClassVar[bool] = False

    def __init__(self, backends: Sequence[Backend]) -> None:
        self._ring = Ring({backend.name: backend.weight for backend in backends})

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        assert ask.session is not None
        home = self._ring.home(ask.session)
        return next(backend for backend in fit if backend.name == home)

    def placed(self, chosen: Backend, fit: Sequence[Backend], ask: Ask, now_s: float) -> None:
        """Nothing is counted."""

    def costs(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> Sequence[float]:
        home = self.choose(fit, ask, now_s, Random(0))
        return [float(backend is not home) for backend in fit]

    @property
    def homes(self) -> None:
        return None

    def home(self, ask: Ask) -> str | None:
        return None

    def remember(self, ask: Ask, chosen: Backend) -> None:
        """Nothing is learnt of sessions."""

    def explain(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> Explanation:
        return Explanation([], [Part()] * len(fit))

    def follow(self, new: Policy, backends: Sequence[Backend]) -> None:
        """There is no reload here."""


class Engine:
    """A prefix cache by conversation, and the moment its prefills are done."""

    def __init__(self) -> None:
        self.free_s = 0.0
        self._cached: OrderedDict[str, int] = OrderedDict()
        self._tokens = 0

    def hit_tokens(self, session: str) -> int:
        return self._cached.get(session, 0)

    def keep(self, session: str, tokens: int) -> None:
        self._tokens += tokens - self._cached.pop(session, 0)
        self._cached[session] = tokens
        while self._tokens > CACHE_TOKENS:
            self._tokens -= self._cached.popitem(last=False)[1]


@dataclass
class Outcome:
    """Sums over all turns; `ratios` are loads over the mean at each choice."""

    prompt_tokens: int = 0
    hit_tokens: int = 0
    reasons: Counter[Reason] = field(default_factory=Counter)
    ttft_s: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)

    @property
    def hit_rate(self) -> float:
        return self.hit_tokens / self.prompt_tokens


def converse(
    make: Callable[[Sequence[Backend]], Policy], *, live: int, conversations: int, seed: int
) -> Outcome:
    """Hold `conversations`, `live` at a time, over a pool with the policy of `make`."""
    rng = Random(seed)
    backends = tuple(Backend(f"gpu-{i}", "http://127.0.0.1:1") for i in range(BACKENDS))
    for backend in backends:
        backend.state = State.READY
    fleet = Fleet((Pool("chat", backends, make(backends)),))
    gate = Gate(lambda: fleet, Random(seed))
    engines = {backend.name: Engine() for backend in backends}
    outcome = Outcome()
    events: list[tuple[float, int, Callable[[float], None]]] = []
    count = 0

    def at(when_s: float, event: Callable[[float], None]) -> None:
        nonlocal count
        count += 1
        heapq.heappush(events, (when_s, count, event))

    def ask(session: str, turn: int, history_tokens: int, now_s: float) -> None:
        prompt = history_tokens + rng.randint(20, 600)
        answer = rng.randint(20, 600)
        lease = gate.choose(
            Ask("/v1/chat/completions", prompt_tokens=prompt, stream=True, session=session), now_s
        )
        engine = engines[lease.backend.name]
        hit = min(prompt, engine.hit_tokens(session))
        engine.free_s = max(now_s, engine.free_s) + (prompt - hit) / PREFILL_TOKENS_PER_S
        engine.keep(session, prompt)
        outcome.prompt_tokens += prompt
        outcome.hit_tokens += hit
        outcome.reasons[lease.reason] += 1
        outcome.ttft_s.append(engine.free_s - now_s)
        mean = sum(map(held_tokens, backends)) / BACKENDS
        outcome.ratios.append(held_tokens(lease.backend) / mean)

        def end(now_s: float) -> None:
            lease.tokens(answer)
            lease.end(now_s)
            engine.keep(session, prompt + answer)
            pause_s = rng.expovariate(1 / PAUSE_S)
            if turn + 1 < TURNS:
                at(now_s + pause_s, lambda then_s: ask(session, turn + 1, prompt + answer, then_s))
            elif (begun := next(fresh, None)) is not None:
                at(now_s + pause_s, lambda then_s: ask(begun, 0, 0, then_s))

        at(engine.free_s, lease.first_token)
        at(engine.free_s + answer / DECODE_TOKENS_PER_S, end)

    fresh = iter([f"{rng.getrandbits(64):x}" for _ in range(conversations)])
    for _ in range(live):
        begun = next(fresh)
        at(rng.uniform(0, PAUSE_S), lambda now_s, begun=begun: ask(begun, 0, 0, now_s))  # type: ignore[misc]
    while events:
        now_s, _, event = heapq.heappop(events)
        event(now_s)
    assert all(backend.own.idle for backend in backends)
    return outcome
