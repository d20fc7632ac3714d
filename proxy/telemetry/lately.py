"""What one backend did in the last two to three minutes: first tokens, failures, the last error.

For people only: nothing is decided by it. A backend has some 1.4 KB of it, whatever its clients do,
so a thousand have 1.4 MB (a test measures it). Whoever has most of a backend's requests has most of
its percentile, too: it says what the backend's clients met, and not how fast the backend is.
"""

from array import array
from bisect import bisect_left
from typing import Final

from penstock.balancing.slo.windows import bound_of, bounds_of

SLOT_S: Final = 60
SLOTS: Final = 3
BOUNDS_S: Final = bounds_of(())


class Lately:
    """The present minute and the two before. `failure`: the reason of the last error, or empty."""

    __slots__ = ("_failures", "_slot", "_ttfts", "failed_s", "failure")

    def __init__(self) -> None:
        # The last bucket also has all that is longer.
        self._ttfts = [array("I", bytes(4 * len(BOUNDS_S))) for _ in range(SLOTS)]
        self._failures = [0] * SLOTS
        self._slot = 0  # number of the present minute since the clock's start
        self.failure = ""
        self.failed_s = 0.0  # when that was

    def first_token(self, ttft_s: float, now_s: float) -> None:
        """Count the first token of a stream."""
        if now_s >= (self._slot + 1) * SLOT_S:
            self.advance(now_s)
        at = min(bisect_left(BOUNDS_S, ttft_s), len(BOUNDS_S) - 1)
        self._ttfts[self._slot % SLOTS][at] += 1

    def failed(self, reason: str, now_s: float) -> None:
        """Count an attempt that failed."""
        self.advance(now_s)
        self._failures[self._slot % SLOTS] += 1
        self.failure, self.failed_s = reason, now_s

    def advance(self, now_s: float) -> None:
        """Drop what is too old. Needed before anything is read."""
        slot = int(now_s // SLOT_S)
        for number in range(max(self._slot + 1, slot - SLOTS + 1), slot + 1):
            at = number % SLOTS
            self._ttfts[at] = array("I", bytes(4 * len(BOUNDS_S)))
            self._failures[at] = 0
        self._slot = max(self._slot, slot)

    @property
    def failures(self) -> int:
        """How many attempts failed."""
        return sum(self._failures)

    @property
    def first_tokens(self) -> int:
        """How many streams had their first token."""
        return sum([sum(each) for each in self._ttfts])

    def ttft_s(self, share: float) -> float | None:
        """So long or shorter took `share` of the first tokens, at most 25 % too high.

        None without any.
        """
        counts = [sum(each) for each in zip(*self._ttfts, strict=True)]
        return bound_of(BOUNDS_S, counts, share)
