"""Rules of other routers, as policies of experiments: our reading of what their authors publish."""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from random import Random
from types import MappingProxyType
from typing import ClassVar, Final

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.policies.policy import Explanation, Part, Policy, cheapest
from penstock.balancing.policies.session import Ring
from penstock.bench.routing.trace import BLOCK_TOKENS, Arrival, block_hashes
from penstock.bench.sim.engine import Engine
from penstock.bench.sim.profiles import Gpu

SHADOW_SHARE: Final = 0.8


class Seen:
    """One backend, as a router sees it by its own traffic. Counts are exact.

    `queued_tokens`: uncached prompt tokens of requests without a first token. `active_tokens`:
    whole prompts of all requests here, and what was generated. `held_tokens`: the same of open
    streams only. The shadow of its prefix cache keeps the blocks used last.
    """

    def __init__(self, index: int, engine: Engine) -> None:
        self.index = index
        self.engine = engine  # for the rules that look into it
        self.queued_tokens = self.requests = self.active_tokens = self.held_tokens = 0
        self._shadow: OrderedDict[int, None] = OrderedDict()
        self._blocks_max = int(SHADOW_SHARE * engine.profile.kv_tokens / BLOCK_TOKENS)

    def cached_tokens(self, arrival: Arrival) -> int:
        """How much of a prompt the shadow holds; its last token is never cached."""
        blocks = 0
        for block in arrival.prefix:
            if block not in self._shadow:
                break
            blocks += 1
        return min(blocks * BLOCK_TOKENS, arrival.prompt_tokens - 1)

    def uncached_tokens(self, arrival: Arrival) -> int:
        return arrival.prompt_tokens - self.cached_tokens(arrival)

    def use(self, arrival: Arrival) -> None:
        """The prompt's blocks are the ones used last; of one prompt the end goes first."""
        for block in reversed(arrival.prefix):
            self._shadow.pop(block, None)
            self._shadow[block] = None
        while len(self._shadow) > self._blocks_max:
            self._shadow.popitem(last=False)

    def uncached_in_engine(self, arrival: Arrival) -> int:
        """Tokens of a prompt that the engine itself would have to compute now."""
        block_tokens = self.engine.profile.block_tokens
        hits, _ = self.engine.cache.cached(block_hashes(arrival, block_tokens))
        return max(1, arrival.prompt_tokens - hits * block_tokens)


class View:
    """All backends, and the request that is to be placed."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.backends = [Seen(index, engine) for index, engine in enumerate(engines)]
        self.arrival = Arrival(0.0, 1, 1)

    def sent(self, index: int, arrival: Arrival) -> int:
        """It went there; returns its uncached tokens, which `began` is to be told."""
        seen = self.backends[index]
        uncached = seen.uncached_tokens(arrival)
        seen.queued_tokens += uncached
        seen.requests += 1
        seen.active_tokens += arrival.prompt_tokens
        seen.use(arrival)
        return uncached

    def began(self, index: int, arrival: Arrival, uncached_tokens: int) -> None:
        """Its first token came."""
        seen = self.backends[index]
        seen.queued_tokens -= uncached_tokens
        seen.held_tokens += arrival.prompt_tokens

    def token(self, index: int) -> None:
        self.backends[index].held_tokens += 1
        self.backends[index].active_tokens += 1

    def ended(self, index: int, arrival: Arrival, tokens: int) -> None:
        """Its last token came."""
        seen = self.backends[index]
        seen.requests -= 1
        seen.held_tokens -= arrival.prompt_tokens + tokens
        seen.active_tokens -= arrival.prompt_tokens + tokens


class Baseline(ABC):
    """A rule over a view, as a policy of the gate: takes the backend of least cost.

    It is never compiled, so it cannot inherit from the compiled `SimplePolicy`.
    """

    needs_sessions: ClassVar[bool] = False
    needs_prefixes: ClassVar[bool] = False
    costs_seconds: ClassVar[bool] = False

    def __init__(self, view: View) -> None:
        self.view = view

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        seen = {backend: self.view.backends[int(backend.name)] for backend in fit}
        allowed = self.allowed(list(seen.values()))
        places = [backend for backend in fit if seen[backend] in allowed]
        return cheapest(places, [self.cost(seen[backend]) for backend in places], rng)

    def placed(self, chosen: Backend, fit: Sequence[Backend], ask: Ask, now_s: float) -> None:
        return  # what was sent is in the view

    def costs(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> Sequence[float]:
        return [self.cost(self.view.backends[int(backend.name)]) for backend in fit]

    def allowed(self, backends: list[Seen]) -> list[Seen]:
        """Those that come into question, at least one."""
        return backends

    @property
    def homes(self) -> None:
        return None

    def home(self, ask: Ask) -> str | None:
        return None

    def remember(self, ask: Ask, chosen: Backend) -> None:
        return  # it learns nothing of sessions

    def explain(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> Explanation:
        return Explanation([], [Part()] * len(fit))

    def follow(self, new: Policy, backends: Sequence[Backend]) -> None:
        return  # experiments have no reload

    @abstractmethod
    def cost(self, backend: Seen) -> float:
        """What this request would cost there; the least is taken."""


class ChwblTokens(Baseline):
    """Consistent hashing with bounded loads, the load counted in tokens.

    The first on the ring that holds no more than its share of all, this request's included. The key
    is the first block of the prompt that is not everybody's (KubeAI's PrefixHash, 2025-02), the
    bound is 1.25 x the mean (Mirrokni and others, "Consistent Hashing with Bounded Loads", 2018).
    """

    BOUND: Final = 1.25

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._ring = Ring({str(seen.index): 1.0 for seen in view.backends})

    def allowed(self, backends: list[Seen]) -> list[Seen]:
        arrival = self.view.arrival
        # A prompt that shares nothing is a key of its own.
        key = arrival.session or repr(arrival)
        held = {str(each.index): each.queued_tokens + each.held_tokens for each in backends}
        limit = self.BOUND * (sum(held.values()) + arrival.prompt_tokens) / len(held)
        for name in self._ring.walk(key):
            if name in held and held[name] <= limit:
                return [self.view.backends[int(name)]]
        return backends

    def cost(self, backend: Seen) -> float:
        return backend.queued_tokens + backend.held_tokens


class Dynamo(Baseline):
    """NVIDIA Dynamo's KV router, approximate mode: its documented linear cost, scale 1.

    Prefill under way + prompt - overlap, and all that is active, which a request is from its
    placing to its end, + the prompt: in tokens (blocks of one size make no difference).
    """

    def cost(self, backend: Seen) -> float:
        arrival = self.view.arrival
        prefill = backend.queued_tokens + backend.uncached_tokens(arrival)
        return prefill + backend.active_tokens + arrival.prompt_tokens


class LMetric(Baseline):
    """New prefill tokens times batch size, no weight to tune (arXiv 2603.15202, abstract)."""

    def cost(self, backend: Seen) -> float:
        tokens = backend.queued_tokens + backend.uncached_tokens(self.view.arrival)
        return tokens * (backend.requests + 1)


class KvAware(Baseline):
    """vllm-router's `kv_aware`: as LMetric, but it knows the engine's cache by its KV events.

    Events are taken to be immediate.
    """

    def cost(self, backend: Seen) -> float:
        uncached = backend.uncached_in_engine(self.view.arrival)
        return (backend.queued_tokens + uncached) * (backend.requests + 1)


class LlmDSticky(Baseline):
    """llm-d's "sticky until saturated" (blog of 2026-08-17), by its shipped constants.

    Backends that hold at least WARM_SHARE of the prompt are warm. Unless the least expected TTFT of
    these exceeds that of the others by T_MAX_S, only they come into question; of those that do,
    the one with the fewest uncached tokens in flight, this request's included.
    """

    WARM_SHARE: Final = 0.8
    T_MAX_S: Final = 18.0
    PEAK_TOKENS_PER_S: Final = 15_928.0

    def allowed(self, backends: list[Seen]) -> list[Seen]:
        arrival = self.view.arrival
        wanted = self.WARM_SHARE * arrival.prompt_tokens
        warm = [backend for backend in backends if backend.cached_tokens(arrival) >= wanted]
        cold = [backend for backend in backends if backend not in warm]
        if not warm or not cold:
            return backends
        queues = [min(backend.queued_tokens for backend in some) for some in (warm, cold)]
        behind_s = (queues[0] - queues[1]) / self.PEAK_TOKENS_PER_S
        return backends if behind_s > self.T_MAX_S else warm

    def cost(self, backend: Seen) -> float:
        return backend.queued_tokens + backend.uncached_tokens(self.view.arrival)


class Oracle(Baseline):
    """What no router can know, used greedily: every output's length, and the engines from inside.

    No bound: it places one request at a time, for the end of all answers and not for their first
    tokens. For each engine the time that this request would take, all that is queued there before
    it, plus what it takes from those that run: prefill in its way, and decode beside it. In seconds
    of the engine's own law.
    """

    def cost(self, backend: Seen) -> float:
        arrival = self.view.arrival
        profile = backend.engine.profile
        assert isinstance(profile, Gpu)
        uncached = backend.uncached_in_engine(arrival)
        sequences = [*backend.engine.sequences]
        queued = sum(max(0, each.prompt_tokens - each.computed) for each in sequences)
        attended = uncached * (arrival.prompt_tokens - uncached / 2)
        prefill_s = (queued + uncached) * profile.token_s + attended * profile.attention_s
        held = sum(each.computed for each in sequences) + arrival.prompt_tokens
        step_s = profile.weights_s + held * profile.kv_token_s
        left = [max(0, each.max_tokens - each.generated) for each in sequences]
        beside = sum(min(each, arrival.output_tokens) for each in left)
        own_s = prefill_s + arrival.output_tokens * step_s
        others_s = len(sequences) * uncached * profile.token_s
        return own_s + others_s + beside * arrival.prompt_tokens * profile.kv_token_s


BASELINES: Final[MappingProxyType[str, Callable[[View], Baseline]]] = MappingProxyType(
    {
        "llm_d_sticky": LlmDSticky,
        "lmetric": LMetric,
        "dynamo": Dynamo,
        "kv_aware": KvAware,
        "chwbl_tokens": ChwblTokens,
        "oracle": Oracle,
    }
)
