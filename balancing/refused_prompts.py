"""How likely an engine computes a long prompt at all, rather than refuse it.

A prompt longer than its model's context is refused, which may take as long as its tokens take to
count. Until then it must not look like the work of a minute: it would drive others away from an
engine that is idle. Only a prompt that is over the context which every backend of the pool gives
with its models may count for less; where one gives none, only a prompt longer than any that the
pool has computed. As estimates are off, what became of the last such prompts of that client, model
and size decides. What fits counts whole, whatever became of others: a request is refused for many
reasons, and whoever wants its long prompts to count for nothing could choose one.
"""

from typing import Final

import msgspec

from balancing.ask import Ask
from balancing.fair_table import FairTable
from balancing.fleet import Pool
from balancing.output_length import NAME_MAX

# What a shorter prompt takes is nothing to worry about: a request costs no more in other ways.
LARGE_TOKENS: Final = 4_096
# Estimates are off by 3 to 11 % in the median, with tools and templates by up to a third
# (`penstock bench estimators`): who is over the context by that is over it.
OVER: Final = 1.5
# Where nobody tells: more than any model takes. A body of many things that look like images, or of
# text that no engine reads, must not hold more of an engine than there is.
CONTEXT_MAX: Final = 1_048_576
# The last ten or so count.
FADE: Final = 0.8
# Who has most of them computed is taken at its word.
MOSTLY: Final = 0.5
# Of clients, models and sizes together.
CLASSES_MAX: Final = 1_024


class RefusedPrompts:
    """What share of them was computed, by client, model and size, where any was refused or was
    expected to be."""

    __slots__ = ("_computed", "_longest_tokens")

    def __init__(self) -> None:
        self._computed: FairTable[float] = FairTable(CLASSES_MAX)
        self._longest_tokens: dict[str, int] = {}  # that each pool has computed

    def weigh(self, ask: Ask, pool: Pool) -> Ask:
        """A large prompt with how likely it is computed; and no longer than it can be."""
        context = _context_below(ask, pool)
        tokens = min(ask.prompt_tokens, (context or CONTEXT_MAX) * ask.prompts)
        over = bool(context)
        if context is None:
            over = ask.prompt_tokens // ask.prompts > self._longest_tokens.get(pool.name, 0)
        likely = 1.0
        if over:
            share = self._computed.find(ask.client, _class(ask, tokens))
            if share is None:
                if ask.uncut and context and ask.prompt_tokens > OVER * tokens:
                    likely = 0.0
            elif share < MOSTLY:
                likely = share
        if likely == 1.0 and ask.prompt_tokens == tokens:
            return ask
        fits = tokens / ask.prompt_tokens
        return msgspec.structs.replace(
            ask,
            likely=likely,
            prompt_tokens=tokens,
            block_tokens=ask.block_tokens * fits,
            media_block_tokens=ask.media_block_tokens * fits,
        )

    def note(self, ask: Ask, pool: str, *, refused: bool) -> None:
        """What became of it in a pool. `ask` as it was placed."""
        if ask.prompt_tokens < LARGE_TOKENS:
            return
        if not refused:
            each = ask.prompt_tokens // ask.prompts
            self._longest_tokens[pool] = max(each, self._longest_tokens.get(pool, 0))
        size = _class(ask, ask.prompt_tokens)
        share = self._computed.find(ask.client, size)
        if share is None:
            if not refused and ask.likely == 1.0:
                return  # as all are
            share = 1.0 if ask.likely == 1.0 else 0.0
        computed = 0.0 if refused else 1.0
        self._computed.put(ask.client, size, share * FADE + computed * (1.0 - FADE))


def _context_below(ask: Ask, pool: Pool) -> int | None:
    """The longest context that the backends which may serve it tell, where the prompt is longer.

    0 where it fits one of them; None where it fits none, and one tells nothing.
    """
    longest = 0
    untold = False
    tokens = ask.prompt_tokens / ask.prompts
    for backend in pool.backends:
        if backend.serves(ask.model):
            context = backend.context_tokens(ask.model)
            if context and tokens <= context:
                return 0  # as a rule the first one: that is all there is to look at
            longest = max(longest, context)
            untold = untold or not context
    return None if untold or not longest else longest


def _class(ask: Ask, tokens: int) -> tuple[str, int, int]:
    """Sizes by powers of two; several prompts are refused as one is."""
    each = tokens // ask.prompts
    return (ask.model or "")[:NAME_MAX], each.bit_length(), ask.prompts
