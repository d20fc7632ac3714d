"""What a request wants, as far as choosing a backend needs it. `reader.py` reads it."""

from typing import Any, Final

from penstock.balancing.body_edits import AnswerLimits
from penstock.balancing.members import Places
from penstock.balancing.output_length import PRIOR_TOKENS
from penstock.balancing.prefix_cache.blocks import BLOCKS_MAX, Blocks
from penstock.balancing.tokens import NOTHING, Measure, TokenEstimator
from penstock.balancing.wants import Wants

FIELDS: Final = (
    "answer_limits",
    "background",
    "block_tokens",
    "blocks",
    "choices",
    "client",
    "counted",
    "engine",
    "first_pool",
    "generates",
    "home",
    "likely",
    "max_tokens",
    "measured",
    "media_block_tokens",
    "media_parts",
    "model",
    "named",
    "output_tokens",
    "path",
    "places",
    "pool",
    "prompt_tokens",
    "prompts",
    "reads_cache",
    "response_id",
    "service_tier",
    "session",
    "stream",
    "tenant",
    "text_blocks",
    "uncut",
    "usage_options",
    "wants",
)
_NAMES: Final = frozenset(FIELDS)


class Ask:
    """One request. The reader sets all fields, except `home` and `pool`, which are decided later.

    `prompt_tokens` is the estimate for all prompts together, made from `measured` or
    `counted`. `prompts` and `choices` tell how many engine requests the backend makes of
    it (prompts x choices). `max_tokens` is the client's limit, None when it gave none.
    """

    measured: Measure = NOTHING  # NOTHING: the tokens are known, or the prompt is not text
    counted: Measure | None = None
    media_parts: int = 0
    prompts: int = 1
    choices: int = 1
    max_tokens: int | None = None
    # What its body says of the length of its answer. None: that was not read.
    answer_limits: AnswerLimits | None = None
    stream: bool = False
    # Those that make a backend report usage unasked by the client. Empty: change nothing.
    usage_options: bytes = b""
    generates: bool = True
    engine: bool = True  # an engine works on it, so its answer shows that the engine works
    session: str | None = None  # the session whose cache it may share; never to be logged
    tenant: str = ""  # empty when no tenants are configured
    client: str = ""  # whom failures are counted for: the tenant, else the address
    response_id: str | None = None  # of a stored response that it refers to, at one backend
    first_pool: bool = False  # it goes to the first pool, whatever the model
    blocks: tuple[int, ...] = ()  # hashes of its text, block by block, as prefix caches share it
    block_tokens: float = 0.0  # tokens of each of the first `text_blocks` blocks
    text_blocks: int = BLOCKS_MAX  # how many blocks come before the first inline image
    media_block_tokens: float = 0.0  # tokens of each block after them
    reads_cache: bool = True  # whether the engine looks the prompt up in its cache
    uncut: bool = False  # no backend shortens the text to the model's context
    likely: float = 1.0  # probability that an engine computes the prompt, not refuses it
    output_tokens: float = PRIOR_TOKENS  # expected for each choice
    service_tier: str | None = None  # as its client asks for it, in the words of the APIs
    background: bool = False  # its engine goes on when its client has left
    pool: str = ""  # where a route sends it; empty: to the pools that serve its model
    places: Places = ()  # of what penstock read in its body, for edits
    wants: Wants | None = None  # None: no route asks
    named: str | None = None  # the model in its body, where only limits look at it
    home: str | None = None  # the name of the backend that its session belongs to

    def __init__(
        self, path: str, model: str | None = None, prompt_tokens: int = 1, **fields: Any
    ) -> None:
        self.path = path
        self.model = model
        self.prompt_tokens = prompt_tokens
        for name in fields:
            assert name in _NAMES, name
            setattr(self, name, fields[name])

    @property
    def limited(self) -> bool:
        """Whether its tenant's limits hold: an engine works on it, or nobody knows who does."""
        return self.engine or self.first_pool

    def add_blocks(self, blocks: Blocks) -> None:
        """Add the blocks of the text. They are cut after the tokens are estimated."""
        self.blocks = blocks.hashes
        self.block_tokens = blocks.tokens
        self.text_blocks = blocks.text
        self.media_block_tokens = blocks.media_tokens

    def changed(self, **fields: Any) -> "Ask":
        """A copy with these fields changed."""
        assert fields.keys() <= _NAMES, fields.keys()
        other = Ask(self.path)
        for name in FIELDS:
            setattr(other, name, fields[name] if name in fields else getattr(self, name))
        return other

    def sized(self, tokens: int, **fields: Any) -> "Ask":
        """A copy whose prompt has this many tokens, with these fields changed."""
        other = self.changed(**fields)
        other.resize(tokens)
        return other

    def resize(self, tokens: int) -> None:
        """Have its prompt count as this many tokens. Only for who made it: others may hold it."""
        share = tokens / self.prompt_tokens
        self.prompt_tokens = tokens
        self.block_tokens *= share
        self.media_block_tokens *= share

    def with_count(self, counted: Measure, estimator: TokenEstimator) -> "Ask":
        """A copy with the text counted by a tokenizer: (tokens, turns)."""
        tokens = estimator.estimate(
            self.model, self.measured, self.media_parts, counted, self.client
        )
        return self.sized(tokens, counted=counted)

    def leading_tokens(self, blocks: int) -> int:
        """The tokens of the first `blocks` blocks. The last token is never cached."""
        known = blocks * self.block_tokens
        if blocks > self.text_blocks:
            known = self.text_blocks * self.block_tokens
            known += (blocks - self.text_blocks) * self.media_block_tokens
        return min(int(known), self.prompt_tokens - 1)
