"""A backend's prefix cache as we think it is, and what one request expects and leaves there.

The index has the prompts that were computed there. Other blocks wait beside it until their
request's first token shows that the engine has computed them. The number of their tokens is an
estimate until the answer reports it.

An engine may hold what we think is new: one text can be spelt in many ways, and other clients may
have sent it past us. Such text displaces nothing in the engine. So its blocks count as little as
possible in the index.
"""

from typing import TYPE_CHECKING, Final

from penstock.balancing.engine_report import EngineReport
from penstock.balancing.prefix_cache.index import BLOCK_TOKENS, PrefixIndex, WaitingBlocks

if TYPE_CHECKING:
    from penstock.balancing.ask import Ask

# A block counts as at least a quarter of BLOCK_TOKENS, so that an index never holds more than four
# times its capacity. A text of even fewer tokens (blanks, one letter again and again) is cut to as
# many blocks as it fills.
WEIGHT_MIN: Final = 0.25
# Estimates are rarely wrong by more. One backend's absurd count must not be believed.
OFF_MAX: Final = 4
# If the reported prompt is below this share of the estimate, the room of the rest is given back.
OFF_MIN: Final = 0.7


class PrefixCache:
    """The cache of one backend. Only the claims of leases change its content."""

    __slots__ = ("index", "keeps", "waiting")

    def __init__(self) -> None:
        self.index = PrefixIndex()
        self.keeps = True  # False: the engine says that it keeps nothing
        self.waiting = WaitingBlocks()

    def held(self, ask: "Ask") -> int:
        """How many of the request's leading blocks are in the cache, or will be in time."""
        if not self.keeps:
            return 0
        held = self.index.held(ask.blocks)
        return self.waiting.held(ask.blocks, held) if held < len(ask.blocks) else held

    def cached_tokens(self, ask: "Ask") -> int:
        """The prompt tokens that are probably in the cache."""
        held = self.held(ask) if ask.reads_cache else 0
        return ask.leading_tokens(held) if held else 0

    def take(self, report: EngineReport) -> None:
        """Take the engine's metrics."""
        if report.kv_tokens is not None:
            self.index.resize(report.kv_tokens // BLOCK_TOKENS)
        self.keeps = report.keeps_prefixes
        if not report.awake or not self.keeps:
            self.forget()

    def forget(self) -> None:
        """The engine's cache is empty."""
        self.index.clear()


class CacheClaim:
    """The claim of one prompt with blocks, from the choice of its backend to its end.

    `cached_tokens`: how much of the prompt the cache should hold.
    """

    __slots__ = (
        "_ask",
        "_cache",
        "_filled",
        "_found",
        "_held",
        "_index_held",
        "_turn",
        "_waits",
        "cached_tokens",
    )

    def __init__(self, cache: PrefixCache, ask: "Ask") -> None:
        self._cache = cache
        self._ask = ask
        self._filled = 0.0
        self._found = 0.0  # blocks that the engine had and the index had not
        self._turn = -1  # the index's turn when the blocks were put there
        blocks = ask.blocks
        self._index_held = held = cache.index.held(blocks)
        self._waits = held < len(blocks)
        if self._waits:
            held = cache.waiting.held(blocks, held)
            cache.waiting.put(self, blocks, self._index_held)
        self._held = held
        self.cached_tokens = ask.leading_tokens(held) if held and ask.reads_cache else 0

    def first_token(self, *, too_soon: bool) -> None:
        """The first token has come. `too_soon`: the engine had the prompt, in another spelling.
        Otherwise it has computed it."""
        if too_soon:
            self._found = float(len(self._ask.blocks) - self._index_held)
        else:
            self._put(self._ask.prompt_tokens)

    @property
    def computed_share(self) -> float:
        """How much of what was thought new the engine computed, 0 to 1. The rest it had."""
        new = len(self._ask.blocks) - self._held
        return max(0.0, 1.0 - self._found / new) if self._found and new else 1.0

    def complete(self, prompt_tokens: int) -> None:
        """The answer is whole. `prompt_tokens`: the reported length of the prompt, 0 for none."""
        thought, blocks = self._ask.prompt_tokens, self._ask.blocks
        if self._turn < 0:
            self._put(prompt_tokens or thought)
        elif 0 < prompt_tokens < OFF_MIN * thought:
            weight, kept = _filled(blocks, thought)
            told_weight, told_kept = _filled(blocks, prompt_tokens)
            less = 1.0 - told_weight * told_kept / (weight * kept)
            self._cache.index.correct(blocks, told_kept, self._filled * less, self._turn)
        elif self._found:
            less = min(self._found, self._filled * (1.0 - WEIGHT_MIN))
            self._cache.index.correct(blocks, len(blocks), less, self._turn)

    def settle(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Compare with the backend's counts: of the prompt, and of cached tokens."""
        # Scale to the reported prompt: an error of the estimate is not the cache's fault.
        expected = self.cached_tokens
        told = expected * prompt_tokens // self._ask.prompt_tokens if expected else 0
        self._found = max(0, cached_tokens - min(told, OFF_MAX * expected)) / BLOCK_TOKENS

    def end(self) -> None:
        """The request is over: its blocks wait no more."""
        if self._waits:
            self._wait_no_more()

    def _put(self, prompt_tokens: int) -> None:
        if self._waits:
            self._wait_no_more()
        blocks, index = self._ask.blocks, self._cache.index
        if prompt_tokens >= len(blocks) * BLOCK_TOKENS and not self._found:
            self._filled = index.use(blocks)
        else:
            weight, kept = _filled(blocks, prompt_tokens)
            if self._found:
                found_share = self._found / max(1, len(blocks) - self._index_held)
                weight = max(WEIGHT_MIN, weight * (1.0 - found_share))
            self._filled = index.use(blocks[:kept], weight)
        self._turn = index.turns

    def _wait_no_more(self) -> None:
        self._waits = False
        self._cache.waiting.remove(self, self._ask.blocks, self._index_held)


def _filled(blocks: tuple[int, ...], prompt_tokens: int) -> tuple[float, int]:
    """What part of an ordinary block each block is, and how many blocks there can be at most."""
    weight = min(1.0, max(WEIGHT_MIN, prompt_tokens / (len(blocks) * BLOCK_TOKENS)))
    return weight, min(len(blocks), max(1, int(prompt_tokens / (WEIGHT_MIN * BLOCK_TOKENS))))
