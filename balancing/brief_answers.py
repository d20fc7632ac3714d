"""Which whole answers of a backend end much sooner than those of its peers. That attracts requests.

A server with broken weights, or with an odd limit of tokens, ends each answer after a few tokens
and would get nearly all requests. `odd_refusals` decides whether only one backend does so.
"""

from collections.abc import Sequence
from statistics import median
from typing import Final

from penstock.balancing.refusals import Refusals

# Of answers whose lengths vary as usual (a log-normal law with sigma 1) one in ten has less than
# this share of the mean.
SHARE: Final = 1 / 6
# Where fewer tokens are usual, a few are no sign.
TOKENS_MIN: Final = 24.0
# The last twenty answers or so count in a backend's mean.
FADE: Final = 0.95
# One long answer must not make all others look brief.
TOKENS_MAX: Final = 4_096
# The peers are looked at once in so many answers, and at each of the first.
LOOKS: Final = 16


class BriefAnswers:
    """The lengths of one backend's answers in tokens, beside the usual one of its peers."""

    __slots__ = ("_answers", "_usual_tokens", "given", "mean_tokens")

    def __init__(self) -> None:
        self._answers = 0
        self._usual_tokens = 0.0
        self.mean_tokens = 0.0
        self.given = Refusals()  # those that were brief, and to whom they were given

    def note(self, tokens: int) -> bool:
        """Note an answer. Returns whether it is time to look at the peers."""
        mean = self.mean_tokens or tokens
        self.mean_tokens = mean * FADE + min(tokens, TOKENS_MAX) * (1.0 - FADE)
        self._answers += 1
        return self._answers <= LOOKS or not self._answers % LOOKS

    def look(self, peers: Sequence["BriefAnswers"]) -> None:
        """Note what is usual at the peers."""
        known = [peer.mean_tokens for peer in peers if peer.mean_tokens]
        self._usual_tokens = median(known) if known else 0.0

    def is_brief(self, tokens: int, max_tokens: int | None) -> bool:
        """Whether an answer is brief. `max_tokens`: the limit of its client."""
        least = SHARE * self._usual_tokens
        if tokens >= least or self._usual_tokens < TOKENS_MIN:
            return False
        return not (max_tokens and max_tokens < least)
