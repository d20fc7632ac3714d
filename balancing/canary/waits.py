"""Which requests wait far longer for their first token than is usual.

An engine that hangs answers nothing, so its requests end when their clients leave, or minutes
later. What is usual is what the stable version needs, by size of prompt, and for plain answers
until the whole answer. It is not told apart by load, for requests that hang are a load themselves.

A long plain answer that is served in the end waits so too, with either version. So such waits are
no errors: how many there are is compared by itself.
"""

from math import log
from typing import Final, Protocol

from penstock.balancing.ask import Ask
from penstock.balancing.canary.ended import Ended
from penstock.balancing.canary.usual import Usual

# Beyond so many times what a quarter of the stable version's requests exceed. An engine under a
# high load, or with a cold cache, is not so much slower.
FAR_TIMES: Final = 5.0
# A prompt of 100,000 tokens that no cache holds takes so long.
FAR_S: Final = 10.0


# And so many times, for one that counts only where a version has served nobody.
LATE_TIMES: Final = 2.0
# A plain answer is waited for to its end. A longer one than this, in tokens, may take minutes, as
# its client wants it: so such requests show nothing.
PLAIN_TOKENS_MAX: Final = 256


def is_watched(ask: Ask) -> bool:
    """Whether a long wait of this request is its engine's doing."""
    return ask.stream or (ask.max_tokens is not None and ask.max_tokens <= PLAIN_TOKENS_MAX)


class Waiting(Protocol):
    """A request that was sent. `told`: its end tells nothing more."""

    told: bool

    @property
    def sent_s(self) -> float:
        """When it was sent to a backend, the last time."""

    @property
    def waits(self) -> bool:
        """Whether it waits for its first token, or its plain answer."""

    def waiting(self, now_s: float) -> Ended:
        """It as one that has waited in vain so far."""


class Waits:
    """What is usual, by the kind of request."""

    __slots__ = ("_usual",)

    def __init__(self) -> None:
        self._usual: dict[int, Usual] = {}

    def add(self, kind: int, waited_s: float) -> None:
        """The stable version has answered a request after this time."""
        usual = self._usual.get(kind)
        if usual is None:
            usual = self._usual[kind] = Usual()
        usual.add(log(max(1e-9, waited_s)))

    def is_late(self, kind: int, waited_s: float) -> bool:
        """Whether it would have had its answer by now from the stable version, or nearly so."""
        usual = self._usual.get(kind) if waited_s > 0.0 else None
        return usual is not None and usual.known and log(waited_s / LATE_TIMES) > usual.late_log

    def is_far(self, kind: int, waited_s: float) -> bool:
        """Whether a request that is not answered has waited so long that it counts as hung."""
        usual = self._usual.get(kind) if waited_s >= FAR_S else None
        return usual is not None and usual.known and log(waited_s / FAR_TIMES) > usual.late_log
