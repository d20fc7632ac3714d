"""What one request expects from a backend's prefix cache, and what it leaves there.

Its blocks wait beside the index until its first token shows that the engine has computed them. The
number of their tokens is an estimate until the answer reports it. A text of few tokens that looks
like many must not displace other clients' blocks. So blocks that would fill much of the cache also
wait for the report (`unconfirmed_blocks`).

An engine may hold what we think is new: one text can be spelt in many ways, and other clients may
have sent it past us. Such text displaces nothing in the engine. So its blocks count as little as
possible in the index.
"""

from typing import Final

from penstock.balancing.ask import Ask
from penstock.balancing.cache_shadow import CacheShadow, kind_of
from penstock.balancing.prefix_index import BLOCK_TOKENS

# A block counts as at least a quarter of BLOCK_TOKENS, so that an index never holds more than four
# times its capacity. A text of even fewer tokens (blanks, one letter again and again) is cut to as
# many blocks as it fills.
WEIGHT_MIN: Final = 0.25
# Estimates are rarely wrong by more. One backend's absurd count must not be believed.
OFF_MAX: Final = 4
# If the reported prompt is below this share of the estimate, the room of the rest is given back.
OFF_MIN: Final = 0.7


class CacheClaim:
    """The claim of one prompt with blocks, from the choice of its backend to its end."""

    __slots__ = (
        "_ask",
        "_awaits",
        "_cache",
        "_counted",
        "_filled",
        "_found",
        "_held",
        "_index_held",
        "_reports",
        "_turn",
        "_usual_tokens",
        "_waits",
        "cached_tokens",
        "expected_tokens",
    )

    def __init__(self, cache: CacheShadow, ask: Ask) -> None:
        self._cache = cache
        self._ask = ask
        self._awaits = True  # its first token
        self._filled = 0.0
        self._usual_tokens = 0  # of what is expected, if its answer will tell
        # At its first token. A restarted engine has new counts, which are not of this prompt.
        self._counted = cache.counted
        self._reports = 0
        self._found = 0.0  # blocks that the engine had and the index had not
        self._turn = -1  # the index's turn when the blocks were put there
        blocks = ask.blocks
        self._index_held = held = cache.index.held(blocks)
        self._waits = held < len(blocks)
        if self._waits:
            held = cache.waiting.held(blocks, held)
            cache.waiting.put(self, blocks, self._index_held)
        self._held = held
        self.expected_tokens = ask.leading_tokens(held) if held and ask.reads_cache else 0
        hits = cache.hits
        self.cached_tokens = self.expected_tokens
        if not hits.whole:
            self.cached_tokens = int(self.expected_tokens * hits.of(kind_of(ask, held)))
        cache.awaited_tokens += self.expected_tokens

    def computed(self) -> None:
        """The first token has come: the prompt is computed."""
        self._begin()
        ask = self._ask
        new = ask.prompt_tokens - self._index_held * ask.block_tokens
        unconfirmed = self._cache.unconfirmed
        if unconfirmed.fits(ask.client, new / BLOCK_TOKENS):
            self._put(ask.prompt_tokens)
            unconfirmed.add(ask.client, self._filled)

    def found(self) -> None:
        """The first token has come too soon: the engine had the prompt, in another spelling."""
        self._begin()
        self._found = float(len(self._ask.blocks) - self._index_held)

    @property
    def computed_share(self) -> float:
        """How much of what was thought new the engine computed, 0 to 1. The rest it had."""
        new = len(self._ask.blocks) - self._held
        return max(0.0, 1.0 - self._found / new) if self._found and new else 1.0

    def complete(self, prompt_tokens: int) -> None:
        """The answer is whole. `prompt_tokens`: the reported length of the prompt, 0 for none."""
        thought = self._ask.prompt_tokens
        if self._turn < 0:
            self._put(prompt_tokens or thought)
            return
        self._cache.unconfirmed.confirm(self._ask.client, self._filled, self._turn)
        if 0 < prompt_tokens < OFF_MIN * thought:
            blocks = self._ask.blocks
            weight, kept = _filled(blocks, thought)
            told_weight, told_kept = _filled(blocks, prompt_tokens)
            less = 1.0 - told_weight * told_kept / (weight * kept)
            self._cache.index.correct(blocks, told_kept, self._filled * less, self._turn)
        elif self._found:
            less = min(self._found, self._filled * (1.0 - WEIGHT_MIN))
            self._cache.index.correct(self._ask.blocks, len(self._ask.blocks), less, self._turn)

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

    def settle(self, prompt_tokens: int, cached_tokens: int | None) -> None:
        """Compare with the backend's counts: of the prompt, and of cached tokens if it tells."""
        # Scale to the reported prompt: an error of the estimate is not the cache's fault.
        expected = self.expected_tokens
        if expected:
            told = expected * prompt_tokens // self._ask.prompt_tokens
            expected = min(told, OFF_MAX * expected)
        if cached_tokens is not None:
            self._found = max(0, cached_tokens - expected) / BLOCK_TOKENS
        kind = kind_of(self._ask, self._held)
        self._cache.settle(self._ask.path, kind, expected, cached_tokens)
        found = cached_tokens or 0
        if self._awaits or not self.expected_tokens:
            self._counted.told_unexpected(found)
        elif cached_tokens is not None or self._usual_tokens:
            usual, self._usual_tokens = self._usual_tokens, 0
            self._counted.told(kind, self.expected_tokens, usual, self._reports, found)

    def _begin(self) -> None:
        self._awaits = False
        if self.expected_tokens:
            self._counted = self._cache.counted
            self._reports = self._counted.reports
            ask = self._ask
            kind = kind_of(ask, self._held)
            self._usual_tokens = self._cache.begun(ask.path, kind, self.expected_tokens)

    def end(self) -> None:
        """The request is over: its blocks wait no more."""
        if self._awaits:
            self._cache.awaited_tokens -= self.expected_tokens
        if self._usual_tokens:
            kind = kind_of(self._ask, self._held)
            self._counted.untold(kind, self.expected_tokens, self._usual_tokens, self._reports)
            self._usual_tokens = 0
        if self._waits:
            self._wait_no_more()

    def _wait_no_more(self) -> None:
        self._waits = False
        self._cache.waiting.remove(self, self._ask.blocks, self._index_held)


def _filled(blocks: tuple[int, ...], prompt_tokens: int) -> tuple[float, int]:
    """What part of an ordinary block each block is, and how many blocks there can be at most."""
    weight = min(1.0, max(WEIGHT_MIN, prompt_tokens / (len(blocks) * BLOCK_TOKENS)))
    return weight, min(len(blocks), max(1, int(prompt_tokens / (WEIGHT_MIN * BLOCK_TOKENS))))
