"""What a router knows of engines behind it by its own traffic: the state that the rules share.

Per backend: uncached prompt tokens sent and not yet begun, the tokens that requests and open
streams hold, and a shadow of its prefix cache, which keeps the blocks used last (0.8 of the
engine's size). Counts are exact; a rule that asks the engine itself says so.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from penstock.bench.routing.trace import BLOCK_TOKENS, Arrival
from penstock.bench.sim.engine import Engine

SHADOW_SHARE: Final = 0.8


class Seen:
    """One backend, as a router sees it."""

    def __init__(self, index: int, engine: Engine) -> None:
        self.index = index
        self.engine = engine  # for the rules that look into it
        self.queued_tokens = 0  # uncached, of requests without a first token
        self.requests = 0
        self.active_tokens = 0  # whole prompts of all requests here, and what was generated
        self.held_tokens = 0  # the same of open streams only
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
