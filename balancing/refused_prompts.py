"""How likely an engine computes a long prompt at all, rather than refuse it.

A prompt longer than its model's context is refused, which may take as long as its tokens take to
count. Until then it must not look like the work of a minute: it would drive others away from an
engine that is idle. Two things tell:

- the context that every backend of the pool gives with its models: one that lies shorter persuades
  nobody, and one that lies longer leaves only the other way;
- what became of the last prompts of that client, model and size.
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

    __slots__ = ("_computed",)

    def __init__(self) -> None:
        self._computed: FairTable[float] = FairTable(CLASSES_MAX)

    def weigh(self, ask: Ask, pool: Pool) -> Ask:
        """A large prompt with how likely it is computed; and no longer than it can be."""
        context = _context_below(ask, pool)
        tokens = min(ask.prompt_tokens, (context or CONTEXT_MAX) * ask.prompts)
        share = self._computed.find(ask.client, _class(ask, tokens))
        likely = 1.0
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

    def note(self, ask: Ask, *, refused: bool) -> None:
        """What became of it. `ask` as it was placed."""
        if ask.prompt_tokens < LARGE_TOKENS:
            return
        size = _class(ask, ask.prompt_tokens)
        share = self._computed.find(ask.client, size)
        if share is None:
            if not refused and ask.likely == 1.0:
                return  # as all are
            share = 1.0 if ask.likely == 1.0 else 0.0
        computed = 0.0 if refused else 1.0
        self._computed.put(ask.client, size, share * FADE + computed * (1.0 - FADE))


def _context_below(ask: Ask, pool: Pool) -> int:
    """The longest context in the pool, where every backend that may serve it tells one and the
    prompt is longer than all of them; else 0."""
    longest = 0
    tokens = ask.prompt_tokens / ask.prompts
    for backend in pool.backends:
        if backend.serves(ask.model):
            context = backend.context_tokens(ask.model)
            if not context or tokens <= context:
                return 0  # as a rule the first one: that is all there is to look at
            longest = max(longest, context)
    return longest


def _class(ask: Ask, tokens: int) -> tuple[str, int, int]:
    """Sizes by powers of two; several prompts are refused as one is."""
    each = tokens // ask.prompts
    return (ask.model or "")[:NAME_MAX], each.bit_length(), ask.prompts
