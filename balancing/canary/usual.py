"""How long the stable version's requests take, and who has waited far longer for a first token.

"Late" is the time that a quarter of the stable version's requests exceed, by kind of request. It is
followed by steps (Robbins and Monro, 1951), in logarithms, so no samples are kept and old ones are
forgotten. It need not be exact: both versions are held against the same number, and it is fixed
before the requests that are compared.

Requests at an engine that hangs end when their clients leave, or minutes later. Their waits are
compared by size of prompt, not by load: those that hang are a load themselves. A long plain answer
waits so, too, with either version: so how many such waits there are is compared by itself.
"""

from collections import defaultdict
from math import log
from typing import Final

from penstock.balancing.ask import Ask

LATE_SHARE: Final = 0.25
# The least step follows a load that doubles within some thirty requests.
STEP: Final = 0.05
FIRST_STEP: Final = 0.5
SAMPLES_MIN: Final = 12
# "Far too long": this many times as long as "late", more than high load or a cold cache explains,
# and at least FAR_S, the prefill of 100,000 tokens that no cache holds.
FAR_TIMES: Final = 5.0
FAR_S: Final = 10.0
# The same where a version has served nobody.
LATE_TIMES: Final = 2.0
# A plain answer is waited for to its end. A longer one than this, in tokens, may take minutes, as
# its client wants it: so such requests show nothing.
PLAIN_TOKENS_MAX: Final = 256


class Usual:
    """The time that a quarter exceeds, as a logarithm."""

    __slots__ = ("late_log", "samples")

    def __init__(self) -> None:
        self.late_log = 0.0
        self.samples = 0

    @property
    def known(self) -> bool:
        """Whether it has seen enough."""
        return self.samples >= SAMPLES_MIN

    def add(self, value_log: float) -> None:
        """One more time of the stable version."""
        if not self.samples:
            self.late_log = value_log
        step = max(STEP, FIRST_STEP / (1.0 + self.samples / 4))
        self.late_log += step * ((value_log > self.late_log) - LATE_SHARE)
        self.samples += 1


ByKind = defaultdict[int, Usual]


def is_watched(ask: Ask) -> bool:
    """Whether a long wait of this request is its engine's doing."""
    return ask.stream or (ask.max_tokens is not None and ask.max_tokens <= PLAIN_TOKENS_MAX)


class Waits:
    """How long the stable version lets requests wait for an answer, by their kind."""

    def __init__(self) -> None:
        self._usual = ByKind(Usual)

    def add(self, kind: int, waited_s: float) -> None:
        """The stable version has answered a request after this time."""
        self._usual[kind].add(log(max(1e-9, waited_s)))

    def is_late(self, kind: int, waited_s: float) -> bool:
        """Whether it would have had its answer by now from the stable version, or nearly so."""
        return self._exceeds(kind, waited_s / LATE_TIMES)

    def is_far(self, kind: int, waited_s: float) -> bool:
        """Whether a request that is not answered has waited so long that it counts as hung."""
        return waited_s >= FAR_S and self._exceeds(kind, waited_s / FAR_TIMES)

    def _exceeds(self, kind: int, seconds: float) -> bool:
        usual = self._usual.get(kind)
        return usual is not None and usual.known and seconds > 0.0 and log(seconds) > usual.late_log
