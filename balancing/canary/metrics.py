"""What versions are compared by: which requests count for each, and when one is bad.

Shares: a request is bad by how it ended. Times: a request is bad if it took longer than three
quarters of the stable version's did, in its own cell's kind of requests, before. So a few very
slow ones weigh no more than a few slow ones, and what is usual may drift. "How much worse" is
asked by dividing the canary's times first: by a little for "worse", by all that is allowed for
"harmless".
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import Final, NamedTuple

from penstock.conf.canary import JudgeSettings


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


# Of what is allowed, this much is never called worse: versions that differ so little are equal.
SHARE_MARGIN: Final = 0.02
TIME_MARGIN: Final = 0.2
CLASSES: Final = 10
# A queue of fewer tokens takes no time.
QUEUE_BITS: Final = 8

Read = Callable[[Ended], float | None]
Kind = Callable[[Ended], int]


class Metric(NamedTuple):
    """One kind of comparison.

    `part`: its part of the chance of a false alarm. `allowed`: how much worse is too much.
    `read`: the time, or 1.0 for a bad request and 0.0 for another; None if it does not count.
    `kind`: only requests of one kind are compared with each other. `fresh`: only requests with
    fresh keys show that the canary is worse, because clients can make such requests at will.
    """

    name: str
    part: float
    allowed: float
    read: Read
    kind: Kind
    timed: bool
    fresh: bool
    before: str  # words around the figures
    after: str = ""

    @property
    def margin(self) -> float:
        """How much worse is still called equal."""
        return self.allowed * (TIME_MARGIN if self.timed else SHARE_MARGIN)

    @property
    def once(self) -> bool:
        """Whether a key counts until its first bad request: one user is one failure."""
        return not self.timed and not self.fresh


def metrics_of(settings: JudgeSettings) -> list[Metric]:
    """Those that are compared. The parts of all add up to 1."""
    found: list[Metric] = []
    for name, part, bad, beside, fresh, words in _SHARES:
        allowed: float | None = getattr(settings, name)
        if allowed is not None:
            read = _share(bad, beside)
            found.append(Metric(name, part, allowed, read, size_of, False, fresh, words))
    for name, key, part, read, kind, fresh, before, after in _TIMES:
        allowed = getattr(settings, key)
        if allowed is not None:
            found.append(Metric(name, part, allowed, read, kind, True, fresh, before, after))
    return found


def size_of(ended: Ended) -> int:
    """The class of its prompt's size, and whether it is a stream."""
    return 2 * _class(ended.prompt_tokens) + ended.stream


def _class(amount: int) -> int:
    """In steps of four times as much."""
    return min(CLASSES - 1, (max(0, amount).bit_length() + 1) // 2)


def _size_and_load(ended: Ended) -> int:
    size, queue = _class(ended.prompt_tokens), _class(ended.queued_tokens >> QUEUE_BITS)
    return (size * CLASSES + queue) * CLASSES + _class(ended.streams)


def _streams(ended: Ended) -> int:
    """In steps of twice as many: each makes the engine's steps longer."""
    return min(2 * CLASSES, ended.streams.bit_length())


def _share(bad: Ending, beside: tuple[Ending, ...]) -> Read:
    """Requests that ended in `bad` are bad. Those that ended in one `beside` it count, too."""

    def read(ended: Ended) -> float | None:
        if ended.ending is bad:
            return 1.0
        return 0.0 if ended.ending in beside else None

    return read


def _ttft_s(ended: Ended) -> float | None:
    if ended.unanswered:
        return ended.waited_s or None if ended.stream else None
    return ended.ttft_s


def _itl_s(ended: Ended) -> float | None:
    return ended.itl_s


def _tokens(ended: Ended) -> float | None:
    tokens = ended.completion_tokens
    return float(tokens) if tokens and ended.ending is Ending.SERVED else None


def _shortness(ended: Ended) -> float | None:
    tokens = _tokens(ended)
    return 1.0 / tokens if tokens else None


_SERVED: Final = (Ending.SERVED,)
_ANSWERED: Final = (Ending.SERVED, Ending.BROKEN, Ending.EMPTY)
# Far too long waits are no errors: where some answers are long, good ones of both versions wait so.
_SHARES: Final[tuple[tuple[str, float, Ending, tuple[Ending, ...], bool, str], ...]] = (
    ("errors", 0.4, Ending.ERROR, _ANSWERED, False, "errors"),
    ("hung", 0.1, Ending.HUNG, _ANSWERED, False, "far too long waits"),
    ("broken", 0.3, Ending.BROKEN, _SERVED, False, "broken answers"),
    ("empty", 0.05, Ending.EMPTY, _SERVED, True, "empty answers"),
    ("refused", 0.05, Ending.REFUSED, _ANSWERED, True, "refusals"),
)
_TIMES: Final[tuple[tuple[str, str, float, Read, Kind, bool, str, str], ...]] = (
    ("ttft", "ttft", 0.04, _ttft_s, _size_and_load, False, "first tokens take", "the time"),
    ("itl", "itl", 0.04, _itl_s, _streams, False, "further tokens take", "the time"),
    ("longer", "length", 0.01, _tokens, size_of, True, "answers are", "as long"),
    ("shorter", "length", 0.01, _shortness, size_of, True, "answers are", "as short"),
)
