"""What a request wants, as the balancing sees it. `peek` reads it from the request."""

import msgspec

from balancing.output_length import PRIOR_TOKENS
from balancing.prompt_blocks import BLOCKS_MAX
from balancing.tokens import NOTHING, Measure, TokenEstimator


class Ask(msgspec.Struct, frozen=True):
    """One request.

    `prompt_tokens` is the estimate for all prompts together, `measured` and
    `counted` what it was made from; `prompts` and `choices` say how many engine
    requests the backend makes of it (prompts x choices). `max_tokens` is the
    client's cap, None when not given.
    """

    path: str
    model: str | None = None
    prompt_tokens: int = 1
    measured: Measure = NOTHING  # nothing: the tokens are known, or it is no text
    counted: Measure | None = None
    media_parts: int = 0
    prompts: int = 1
    choices: int = 1
    max_tokens: int | None = None
    stream: bool = False
    # What makes a backend report the usage that the client does not want; empty: nothing is to
    # change.
    usage_options: bytes = b""
    generates: bool = True
    engine: bool = True  # an engine works on it: its answer says that the engine does
    session: str | None = None  # whose cache it may share; never to be logged
    tenant: str = ""  # who asks; nothing where nobody is asked
    client: str = ""  # the same for the health of backends: the tenant, else the address
    response_id: str | None = None  # of a stored response that it refers to, at one backend
    first_pool: bool = False  # no model decides
    blocks: tuple[int, ...] = ()  # of its text, as prefix caches would share it
    block_tokens: float = 0.0  # what each of them is in tokens
    text_blocks: int = BLOCKS_MAX  # so many; from the first inline image on:
    media_block_tokens: float = 0.0
    reads_cache: bool = True  # whether an engine looks for its beginning there
    uncut: bool = False  # text that no backend shortens to what its model takes
    likely: float = 1.0  # that an engine computes the prompt, rather than refuses it
    output_tokens: float = PRIOR_TOKENS  # expected of each choice
    home: str | None = None  # the backend where its session was last

    def with_count(self, counted: Measure, estimator: TokenEstimator) -> "Ask":
        """The same request, its text counted by a tokenizer: (tokens, turns)."""
        tokens = estimator.estimate(
            self.model, self.measured, self.media_parts, counted, self.client
        )
        share = tokens / self.prompt_tokens
        return msgspec.structs.replace(
            self,
            prompt_tokens=tokens,
            counted=counted,
            block_tokens=self.block_tokens * share,
            media_block_tokens=self.media_block_tokens * share,
        )

    def leading_tokens(self, blocks: int) -> int:
        """What so many of its first blocks are in tokens. The last token is never cached."""
        known = blocks * self.block_tokens
        if blocks > self.text_blocks:
            known = self.text_blocks * self.block_tokens
            known += (blocks - self.text_blocks) * self.media_block_tokens
        return min(int(known), self.prompt_tokens - 1)
