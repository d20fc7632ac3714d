"""When a request that has to wait will have its first token.

What is ahead of it goes at the pace that higher classes leave. What the engines have queued, and
its own prompt on one of them, go at the pace of all (in virtual time the best of five predictions:
bench/history/2026-11-admission.md, E). That is off by a factor which depends on the size of the
prompt, and the factor is learnt from the true waits.
"""

from math import exp, log
from typing import Final

from penstock.balancing.admission.pace import Pace
from penstock.balancing.admission.ticket import Ticket

# Prompts below 256, 1,024, 4,096 and 16,384 tokens, and longer ones, are corrected apart.
SIZES: Final = 5
SMALLEST_BITS: Final = 8
# A wait moves the correction by 3 %, whatever it was, and all of them at most that far.
STEP: Final = 0.03
FACTOR_MAX: Final = 3.0
# Shorter times are as good as these.
LEAST_S: Final = 0.05


class Prediction:
    """What the waits of one pool have taught."""

    __slots__ = ("_logs", "_teacher")

    def __init__(self) -> None:
        self._logs = [0.0] * SIZES  # of true over predicted time
        self._teacher = ""

    def predict(
        self,
        ticket: Ticket,
        ahead_tokens: float,
        queued_tokens: int,
        speeds: list[float],
        pace: Pace,
    ) -> float:
        """Seconds until its first token. `speeds`: tokens a second of each engine alone.

        Sets `raw_s` and `predicted_s` of the ticket.
        """
        together = sum(speeds)
        whole = pace.per_s(together)
        raw_s = ahead_tokens / pace.per_s(together, ticket.rank)
        raw_s += queued_tokens / whole + own_s(ticket, speeds, pace)
        ticket.raw_s = raw_s
        ticket.predicted_s = raw_s * exp(self._logs[_size(ticket.tokens)])
        return ticket.predicted_s

    def learn(self, ticket: Ticket, waited_s: float) -> None:
        """It has its first token, so long after it came.

        One flow alone cannot teach for all: of two waits in a row that are its own, one counts.
        """
        if not ticket.raw_s:
            return
        if ticket.name and ticket.name == self._teacher:
            self._teacher = ""
            return
        self._teacher = ticket.name
        size = _size(ticket.tokens)
        true = log(max(LEAST_S, waited_s) / max(LEAST_S, ticket.raw_s))
        step = STEP if true > self._logs[size] else -STEP
        most = log(FACTOR_MAX)
        self._logs[size] = min(most, max(-most, self._logs[size] + step))


def own_s(ticket: Ticket, speeds: list[float], pace: Pace) -> float:
    """The time that its own prompt takes on one of the engines."""
    return ticket.tokens * len(speeds) / pace.per_s(sum(speeds))


def _size(tokens: int) -> int:
    return min(SIZES - 1, max(0, (tokens.bit_length() - SMALLEST_BITS + 1) // 2))
