"""How fast an error budget burns, and when that is worth a page or a ticket.

The windows and rates are those of Google's SRE workbook for a budget of 30 days: 14.4 for an hour
is 2 % of it, 6 for six hours 5 %, 1 for three days 10 %. The short window lets an alert clear soon.
"""

from typing import Final, NamedTuple

from penstock.balancing.slo.windows import Ring

DAY_S: Final = 86_400.0
# Fewer bad requests in the long window never alarm: one of ten may be anything.
BAD_MIN: Final = 10
# A burn rate is at most 1 / budget. Where a rate is out of reach, nearly all requests must be bad.
BAD_SHARE_MOST: Final = 0.9


class Pair(NamedTuple):
    """A long and a short window. An alert needs `rate` in both."""

    short: str
    long: str
    rate: float
    pages: bool


SPANS_S: Final = {
    "5m": 300.0,
    "30m": 1_800.0,
    "1h": 3_600.0,
    "6h": 6 * 3_600.0,
    "3d": 3 * DAY_S,
}
PAIRS: Final = (
    Pair("5m", "1h", 14.4, pages=True),
    Pair("30m", "6h", 6.0, pages=True),
    Pair("6h", "3d", 1.0, pages=False),
)


def pairs_within(window_s: float) -> list[Pair]:
    """Those that a budget for this time has."""
    return [pair for pair in PAIRS if SPANS_S[pair.long] <= window_s]


def rate_of(pair: Pair, share: float) -> float:
    """The burn rate from which a pair alarms, for the share of requests that must be good."""
    return min(pair.rate, BAD_SHARE_MOST / (1.0 - share))


def burn_rate(ring: Ring, share: float) -> float:
    """How many times faster than evenly over the budget's time. 0 without requests."""
    valid = ring.good + ring.bad
    return ring.bad / valid / (1.0 - share) if valid else 0.0
