"""How fast an error budget burns, and when that is worth a page or a ticket.

The windows and parts are those of Google's SRE workbook: 2 % of the budget in an hour, 5 % in six
hours, 10 % in three days. For a budget of 30 days or more that is a burn rate of 14.4, 6 and 1. For
a shorter one it is less, so that an alert comes before the budget is gone. The short window lets an
alert clear soon.
"""

from typing import Final, NamedTuple

from penstock.balancing.slo.windows import Ring

DAY_S: Final = 86_400.0
# Fewer bad requests in the long window never alarm: one of ten may be anything.
BAD_MIN: Final = 10
# A burn rate is at most 1 / budget. Where a rate is out of reach, nearly all requests must be bad.
BAD_SHARE_MOST: Final = 0.9


class Pair(NamedTuple):
    """A long and a short window. The long one burns `part` of the budget if both alarm."""

    short: str
    long: str
    part: float
    pages: bool


SPANS_S: Final = {
    "5m": 300.0,
    "30m": 1_800.0,
    "1h": 3_600.0,
    "6h": 6 * 3_600.0,
    "3d": 3 * DAY_S,
}
PAIRS: Final = (
    Pair("5m", "1h", 0.02, pages=True),
    Pair("30m", "6h", 0.05, pages=True),
    Pair("6h", "3d", 0.10, pages=False),
)
USUAL_S: Final = 30 * DAY_S
# A budget that burns more slowly is worth no page: it lasts for a quarter of its time or longer.
PAGES_MIN: Final = 4.0
TICKETS_MIN: Final = 1.0


def pairs_within(window_s: float) -> list[Pair]:
    """Those that a budget for this time has."""
    return [pair for pair in PAIRS if SPANS_S[pair.long] <= window_s]


def rate_of(pair: Pair, share: float, window_s: float) -> float:
    """The burn rate from which a pair alarms.

    `share`: of the requests that must be good. `window_s`: of the budget, the long window or more.
    """
    long_s = SPANS_S[pair.long]
    spent = window_s / long_s  # the rate at which the long window burns all of it
    least = min(spent, PAGES_MIN if pair.pages else TICKETS_MIN)
    rate = max(least, pair.part * min(window_s, USUAL_S) / long_s)
    return min(rate, BAD_SHARE_MOST / (1.0 - share))


def burn_rate(ring: Ring, share: float) -> float:
    """How many times faster than evenly over the budget's time. 0 without requests."""
    valid = ring.good + ring.bad
    return ring.bad / valid / (1.0 - share) if valid else 0.0
