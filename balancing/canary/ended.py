"""What a canary's judge is told of one request that has ended."""

from dataclasses import KW_ONLY, dataclass
from enum import Enum


class Ending(Enum):
    """How a request ended, and by whose doing."""

    SERVED = "served"  # a whole answer with a token or more
    ERROR = "error"  # its version failed before the first token, also if another attempt hid that
    BROKEN = "broken"  # the answer broke off after the first token
    EMPTY = "empty"  # a whole answer without a token
    REFUSED = "refused"  # the engine's own 4xx, or an answer that it stopped by a filter
    LEFT = "left"  # the client left, or its own time was over
    HUNG = "hung"  # the same, or it waits still, but far too long for a first token (`usual.py`)


@dataclass(slots=True)
class Ended:
    """One request. Times are in seconds, None if there is none or it is unknown."""

    ending: Ending
    _: KW_ONLY
    canary: bool  # the version that was drawn for it
    client: str
    key: int | None = None  # the hash that drew it. None: it was drawn for this request alone
    fresh: bool = True  # its client could not know which one it would be (`groups.py`)
    prompt_tokens: int = 1
    stream: bool = True
    queued_tokens: int = 0  # at its backend when it was sent there
    streams: int = 0  # there, when it was sent
    ttft_s: float | None = None  # since it was sent, of streams
    first_s: float | None = None  # the same, of plain answers too
    waited_s: float = 0.0  # how long one without an answer waited for its first token
    itl_s: float | None = None
    completion_tokens: int | None = None

    @property
    def unanswered(self) -> bool:
        """Whether its first token did not come: what it had waited is the least."""
        left = self.ending is Ending.LEFT or self.ending is Ending.HUNG
        return left and self.ttft_s is None
