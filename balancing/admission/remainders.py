"""How many tokens of an answer are still to come.

An answer that is long already is likely to become longer than the mean. The last whole answers of a
pool tell: each as a multiple of the mean of its flow then. The mean is that of the flow alone, so a
tenant with long answers changes for others only how far answers spread.

The mean here is not the expectation of the request (`output_length`). That is fixed when a request
comes, and an answer takes seconds. While a fleet's answers grow, or nothing is known yet, the end
of an answer would be compared with what was expected long ago.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from typing import Final

from penstock.balancing.admission.ticket import Flow
from penstock.balancing.ask import Ask

# How many answers tell. With few of them, a part of the expected length is always still to come.
KEPT: Final = 256
KEPT_MIN: Final = 30
UNKNOWN: Final = 0.25
# How much an answer changes the mean of its flow.
MEAN_SHARE: Final = 0.02
# An answer longer than this many times what was expected counts as that long.
TIMES_MAX: Final = 8.0


class Remainders:
    """The spread of answers' lengths in one pool."""

    __slots__ = ("_last", "_ordered", "_stale", "_sums", "longest")

    def __init__(self) -> None:
        self._last: deque[float] = deque()
        self._ordered: list[float] = []
        self._sums: list[float] = [0.0]  # of the longest 0, 1, 2... answers
        self._stale = False
        self.longest = 1.0  # the most that is ever left, as a multiple of the expected length

    def observe(self, flow: Flow, answer_tokens: int) -> None:
        """An answer of this flow is whole."""
        mean = flow.answer_tokens or float(answer_tokens)
        flow.answer_tokens = mean + MEAN_SHARE * (min(TIMES_MAX * mean, answer_tokens) - mean)
        times = min(TIMES_MAX, answer_tokens / mean)
        self._last.append(times)
        insort(self._ordered, times)
        if len(self._last) > KEPT:
            del self._ordered[bisect_left(self._ordered, self._last.popleft())]
        self._stale = True

    def left_tokens(self, flow: Flow, ask: Ask, generated_tokens: int) -> float:
        """The mean of what is still to come of an answer, for all its choices together."""
        expected = flow.answer_tokens or ask.output_tokens
        each = generated_tokens / (ask.prompts * ask.choices)
        left = self._left(each / expected) * expected
        if ask.max_tokens is not None:
            left = min(left, max(0.0, ask.max_tokens - each))
        return left * ask.prompts * ask.choices

    def _left(self, times: float) -> float:
        """The mean remainder after `times` the expected length, as a multiple of that."""
        ordered = self._ordered
        if len(ordered) < KEPT_MIN:
            return max(1.0 - times, UNKNOWN)
        if self._stale:
            self._sum()
        longer = len(ordered) - bisect_right(ordered, times)
        if not longer:
            return UNKNOWN
        return self._sums[longer] / longer - times

    def _sum(self) -> None:
        """Add up the longest answers, and find the largest remainder."""
        total, sums, longest = 0.0, [0.0], UNKNOWN
        ordered = self._ordered
        for times in reversed(ordered):
            total += times
            sums.append(total)
        for place, times in enumerate(ordered[:-1]):  # just after each answer's end
            longer = len(ordered) - place - 1
            longest = max(longest, sums[longer] / longer - times)
        self._sums, self._stale = sums, False
        self.longest = max(longest, sums[-1] / len(ordered))
