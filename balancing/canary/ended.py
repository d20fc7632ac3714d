"""What a canary's judge is told of one request that has ended."""

from enum import Enum


class Ending(Enum):
    """How a request ended, and by whose doing."""

    SERVED = "served"  # a whole answer with a token or more
    ERROR = "error"  # its version failed before the first token, also if another attempt hid that
    BROKEN = "broken"  # the answer broke off after the first token
    EMPTY = "empty"  # a whole answer without a token
    REFUSED = "refused"  # the engine's own 4xx, or an answer that it stopped by a filter
    LEFT = "left"  # the client left, or its own time was over
    HUNG = "hung"  # the same, or it waits still, but far too long for a first token (`waits.py`)


class Ended:
    """One request. Times are in seconds, None if there is none or it is unknown."""

    __slots__ = (
        "canary",
        "client",
        "completion_tokens",
        "ending",
        "first_s",
        "fresh",
        "itl_s",
        "key",
        "prompt_tokens",
        "queued_tokens",
        "stream",
        "streams",
        "ttft_s",
        "waited_s",
    )

    def __init__(
        self,
        ending: Ending,
        *,
        canary: bool,
        client: str,
        key: int | None = None,
        fresh: bool = True,
        prompt_tokens: int = 1,
        stream: bool = True,
        queued_tokens: int = 0,
        streams: int = 0,
        ttft_s: float | None = None,
        first_s: float | None = None,
        waited_s: float = 0.0,
        itl_s: float | None = None,
        completion_tokens: int | None = None,
    ) -> None:
        """`canary`: which version was drawn for it. `key`: the hash that drew it, None if it was
        drawn for this request alone. `fresh`: its client could not know which one it would be
        (`fresh_keys`). `queued_tokens`: at its backend when it was sent there. `streams`: there,
        on average over its first token and its end.
        `ttft_s`: since it was sent, of streams. `first_s`: the same, of plain answers too.
        `waited_s`: how long one that was not answered had waited, or has, for its first token.
        """
        self.ending = ending
        self.canary = canary
        self.client = client
        self.key = key
        self.fresh = fresh
        self.prompt_tokens = prompt_tokens
        self.stream = stream
        self.queued_tokens = queued_tokens
        self.streams = streams
        self.ttft_s = ttft_s
        self.first_s = first_s
        self.waited_s = waited_s
        self.itl_s = itl_s
        self.completion_tokens = completion_tokens

    @property
    def unanswered(self) -> bool:
        """Whether its first token did not come: what it had waited is the least."""
        left = self.ending is Ending.LEFT or self.ending is Ending.HUNG
        return left and self.ttft_s is None
