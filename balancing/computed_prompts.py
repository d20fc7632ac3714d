"""How much of a long prompt an engine is likely to compute.

A prompt longer than the model's context is refused. That may take as long as counting its tokens.
Until then it must not look like a minute of work, or it would drive other requests away from an
idle engine. Nor must a prompt whose client leaves before it is computed (its image never comes),
nor one that the engine has in its cache in another spelling.

So a prompt counts for the share that was computed of the last long prompts of this client, model
and size. A prompt that fits the context counts for a quarter at least, because a client can make
that share small on purpose: it has some refused, or leaves. Its other prompts then cost the others
up to 1.8 times as much time to first token as honest ones (virtual time, eight engines). A prompt
is over the context if all backends of the pool report a shorter one. If one reports none, it is
over if it is longer than any prompt that the pool has computed.
"""

from collections.abc import Sequence
from typing import Final

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.fair_table import FairTable
from penstock.balancing.fleet import Pool
from penstock.balancing.output_length import NAME_MAX

# Shorter prompts do not matter: a request costs as much in other ways. With 4,096, one client's
# prompts of 4,095 tokens, spelt anew 12 times a second, tripled the others' time to first token.
LARGE_TOKENS: Final = 1_024
# Estimates are off by 3 to 11 % in the median, with tools and templates by up to a third (`penstock
# bench estimators`). A prompt that is over the context by this factor really is.
OVER: Final = 1.5
# A prompt that is over by this factor is refused, unless this client's were computed. No text is
# estimated at four times its tokens, but for long runs of one sign.
FAR_OVER: Final = 4.0
# If no context is reported: more than any model takes. A body with many image-like parts, or with
# text that no engine reads, must not reserve more of an engine than there is.
CONTEXT_MAX: Final = 1_048_576
# The last ten or so count.
FADE: Final = 0.8
# If most of a client's long prompts are computed, its prompts count in full.
MOSTLY: Final = 0.5
# What a prompt that fits counts at least. With less, others wait for what was not expected. With
# more, prompts that cost an engine nothing drive them away.
FITS_MIN: Final = 0.25
# The limit for all clients, models and sizes together.
CLASSES_MAX: Final = 1_024


class OverContext(ValueError):
    """The prompt is longer than any backend's context, by more than an estimate may be off."""

    def __init__(self, context_tokens: int) -> None:
        super().__init__(context_tokens)
        self.context_tokens = context_tokens


class ComputedPrompts:
    """The share of long prompts that was computed, by client, model and size. Kept only for classes
    in which some prompt was not computed, or was not expected to be."""

    def __init__(self) -> None:
        self._computed: FairTable[float] = FairTable(CLASSES_MAX)
        self._longest_tokens: dict[str, int] = {}  # the longest prompt that each pool computed

    def weigh(self, ask: Ask, pool: Pool) -> Ask:
        """The request with `likely` set, and with its tokens cut to what is possible.

        Raises OverContext if no backend can take it.
        """
        context = _context_below(ask, pool.backends)
        tokens = min(ask.prompt_tokens, (context or CONTEXT_MAX) * ask.prompts)
        over = bool(context)
        if context is None:
            over = ask.prompt_tokens // ask.prompts > self._longest_tokens.get(pool.name, 0)
        likely = 1.0
        if over:
            share = self._computed.find(ask.client, _class(ask, tokens))
            unlikely = share is None or share < MOSTLY
            if context and unlikely and ask.uncut and _is_far_over(ask, context):
                raise OverContext(context)
            if share is None:
                if ask.uncut and context and ask.prompt_tokens > OVER * tokens:
                    likely = 0.0
            elif share < MOSTLY:
                likely = share
        else:
            share = self._computed.find(ask.client, _class(ask, tokens))
            if share is not None and share < MOSTLY:
                likely = max(FITS_MIN, share)
        if likely == 1.0 and ask.prompt_tokens == tokens:
            return ask
        return ask.sized(tokens, likely=likely)

    def is_too_long(self, ask: Ask, backends: Sequence[Backend]) -> bool:
        """Whether `weigh` would raise OverContext if its pool had only these backends."""
        context = _context_below(ask, backends) or 0
        if not context or not ask.uncut or not _is_far_over(ask, context):
            return False
        share = self._computed.find(ask.client, _class(ask, context * ask.prompts))
        return share is None or share < MOSTLY

    def note(self, ask: Ask, pool: str, computed: float | None) -> None:
        """Note what became of a request in a pool. `ask` as it was when placed.

        `computed`: how much of its new text was computed, 0 to 1; None: it was not served.
        """
        if ask.prompt_tokens < LARGE_TOKENS:
            return
        if computed is not None:
            each = ask.prompt_tokens // ask.prompts
            self._longest_tokens[pool] = max(each, self._longest_tokens.get(pool, 0))
        size = _class(ask, ask.prompt_tokens)
        share = self._computed.find(ask.client, size)
        if share is None:
            if computed == 1.0 and ask.likely == 1.0:
                return  # the usual case
            share = 1.0 if ask.likely == 1.0 else 0.0
        self._computed.put(ask.client, size, share * FADE + (computed or 0.0) * (1.0 - FADE))


def _is_far_over(ask: Ask, context_tokens: int) -> bool:
    factor = OVER if ask.counted else FAR_OVER
    return ask.prompt_tokens > factor * context_tokens * ask.prompts


def _context_below(ask: Ask, backends: Sequence[Backend]) -> int | None:
    """The longest context that the backends for this request report, if the prompt is longer.

    0 if it fits one of them. None if it fits none and one of them reports no context.
    """
    longest = 0
    untold = False
    tokens = ask.prompt_tokens / ask.prompts
    for backend in backends:
        if backend.serves(ask.model):
            context = backend.context_tokens(ask.model)
            if context and tokens <= context:
                return 0  # usually the first backend: nothing more to look at
            longest = max(longest, context)
            untold = untold or not context
    return None if untold or not longest else longest


def _class(ask: Ask, tokens: int) -> tuple[str, int, int]:
    """The class of a prompt. Sizes are grouped by powers of two, in tokens for each prompt."""
    each = tokens // ask.prompts
    return (ask.model or "")[:NAME_MAX], each.bit_length(), ask.prompts
