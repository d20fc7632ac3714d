"""What a request wants, as far as choosing a backend needs it. `reader.py` reads it."""

from typing import Any, Final

from penstock.balancing.body_edits import AnswerLimits
from penstock.balancing.output_length import PRIOR_TOKENS
from penstock.balancing.places import Places
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
    """One request. All fields are set at the start, except `home`, which the gate sets, and what
    the reader adds for routes.

    `prompt_tokens` is the estimate for all prompts together, made from `measured` or
    `counted`. `prompts` and `choices` tell how many engine requests the backend makes of
    it (prompts x choices). `max_tokens` is the client's limit, None when it gave none.
    """

    __slots__ = FIELDS

    def __init__(
        self,
        path: str,
        model: str | None = None,
        prompt_tokens: int = 1,
        measured: Measure = NOTHING,
        counted: Measure | None = None,
        media_parts: int = 0,
        prompts: int = 1,
        choices: int = 1,
        max_tokens: int | None = None,
        answer_limits: AnswerLimits | None = None,
        stream: bool = False,
        usage_options: bytes = b"",
        generates: bool = True,
        engine: bool = True,
        session: str | None = None,
        tenant: str = "",
        client: str = "",
        response_id: str | None = None,
        first_pool: bool = False,
        blocks: tuple[int, ...] = (),
        block_tokens: float = 0.0,
        text_blocks: int = BLOCKS_MAX,
        media_block_tokens: float = 0.0,
        reads_cache: bool = True,
        uncut: bool = False,
        likely: float = 1.0,
        output_tokens: float = PRIOR_TOKENS,
        home: str | None = None,
        service_tier: str | None = None,
        background: bool = False,
        pool: str = "",
    ) -> None:
        self.path = path
        self.model = model
        self.prompt_tokens = prompt_tokens
        self.measured = measured  # NOTHING: the tokens are known, or the prompt is not text
        self.counted = counted
        self.media_parts = media_parts
        self.prompts = prompts
        self.choices = choices
        self.max_tokens = max_tokens
        # What its body says of the length of its answer. None: that was not read.
        self.answer_limits = answer_limits
        self.stream = stream
        # Those that make a backend report usage unasked by the client. Empty: change nothing.
        self.usage_options = usage_options
        self.generates = generates
        self.engine = engine  # an engine works on it, so its answer shows that the engine works
        self.session = session  # the session whose cache it may share; never to be logged
        self.tenant = tenant  # empty when no tenants are configured
        self.client = client  # whom failures are counted for: the tenant, else the address
        self.response_id = response_id  # of a stored response that it refers to, at one backend
        self.first_pool = first_pool  # it goes to the first pool, whatever the model
        self.blocks = blocks  # hashes of its text, block by block, as prefix caches share it
        self.block_tokens = block_tokens  # tokens of each of the first `text_blocks` blocks
        self.text_blocks = text_blocks  # how many blocks come before the first inline image
        self.media_block_tokens = media_block_tokens  # tokens of each block after them
        self.reads_cache = reads_cache  # whether the engine looks the prompt up in its cache
        self.uncut = uncut  # no backend shortens the text to the model's context
        self.likely = likely  # probability that an engine computes the prompt, not refuses it
        self.output_tokens = output_tokens  # expected for each choice
        self.service_tier = service_tier  # as its client asks for it, in the words of the APIs
        self.background = background  # its engine goes on when its client has left
        self.pool = pool  # where a route sends it; empty: to the pools that serve its model
        self.places: Places = ()  # of what penstock read in its body, for edits
        self.wants: Wants | None = None  # None: no route asks
        self.named: str | None = None  # the model in its body, where only limits look at it
        self.home = home  # the name of the backend that its session belongs to

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
        unknown = fields.keys() - _NAMES
        assert not unknown, unknown
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
