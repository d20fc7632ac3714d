"""When a request that has to wait will have its first token.

What is ahead of it goes at the pace that higher classes leave. What the engines have queued, and
its own prompt on one of them, go at the pace of all (in virtual time the best of five predictions:
bench/history/2026-11-admission.md, E). That is off by a factor which depends on the size of the
prompt, and the factor is learnt from the true waits: for each flow apart, so that
nobody teaches what others are told.
"""

from math import exp, log
from typing import Final

from penstock.balancing.admission.pace import Pace
from penstock.balancing.admission.ticket import SIZES, Ticket

# Prompts below 256, 1,024, 4,096 and 16,384 tokens, and longer ones, are corrected apart.
SMALLEST_BITS: Final = 8
# A wait moves the correction by 3 %, whatever it was, and all of them at most that far.
STEP: Final = 0.03
FACTOR_MAX: Final = 3.0
# Shorter times are as good as these.
LEAST_S: Final = 0.05


def predict(
    ticket: Ticket,
    ahead_tokens: float,
    queued_tokens: int,
    full_s: float,
    speeds: list[float],
    pace: Pace,
) -> float:
    """Seconds until its first token. `full_s`: until the chosen backend's cache has room.

    `speeds`: tokens a second of each engine alone.

    Sets `raw_s` and `predicted_s` of the ticket.
    """
    raw_s = before_s(ahead_tokens, ticket.rank, queued_tokens, full_s, speeds, pace)
    raw_s += own_s(ticket, speeds, pace)
    ticket.raw_s = raw_s
    ticket.predicted_s = raw_s * exp(ticket.flow.errors[size_of(ticket.tokens)])
    return ticket.predicted_s


def before_s(
    ahead_tokens: float,
    rank: int,
    queued_tokens: int,
    full_s: float,
    speeds: list[float],
    pace: Pace,
) -> float:
    """Seconds until an engine begins with a request of this class. Not corrected."""
    together = sum(speeds)
    wait_s = max(full_s, ahead_tokens / pace.per_s(together, rank))
    return wait_s + queued_tokens / pace.per_s(together)


def learn(ticket: Ticket, waited_s: float) -> None:
    """It has its first token, so long after it came. Teaches nothing if it did not wait."""
    if not ticket.raw_s:
        return
    errors, size = ticket.flow.errors, size_of(ticket.tokens)
    true = log(max(LEAST_S, waited_s) / max(LEAST_S, ticket.raw_s))
    step = STEP if true > errors[size] else -STEP
    most = log(FACTOR_MAX)
    errors[size] = min(most, max(-most, errors[size] + step))


def own_s(ticket: Ticket, speeds: list[float], pace: Pace) -> float:
    """The time that its own prompt takes on one of the engines."""
    return ticket.tokens * len(speeds) / pace.per_s(sum(speeds))


def size_of(tokens: int) -> int:
    """Which of the sizes that are corrected apart a prompt has."""
    return min(SIZES - 1, max(0, (tokens.bit_length() - SMALLEST_BITS + 1) // 2))
