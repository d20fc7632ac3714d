"""Figures as people read them, as short as a column needs it. What nobody has told is a dash."""

from datetime import datetime
from typing import Final

NONE: Final = "-"
_SIZES: Final = ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))


def count(value: float | None) -> str:
    """950, 12.3k, 4.1M."""
    if value is None:
        return NONE
    for least, size, unit in _SIZES:
        if value >= least:
            return f"{value / size:.{int(value < 100.0 * size)}f}{unit}"
    return f"{value:.1f}" if value < 10 and value % 1 else f"{value:,.0f}"


def percent(share: float | None) -> str:
    """61%."""
    return NONE if share is None else f"{share:.0%}"


def seconds(value: float | None, units: float = 1.0) -> str:
    """42ms, 0.31s, 3.1min. `units`: how many of the value's are a second."""
    if value is None:
        return NONE
    value /= units
    if value < 0.0995:
        return f"{1e3 * value:.0f}ms"
    if value < 120.0:
        return f"{value:.{1 + (value < 10.0)}f}s"
    return f"{value / 60.0:.1f}min"


def times(value: float | None) -> str:
    """3.4x."""
    return NONE if value is None else f"{value:.1f}x"


def price(value: float) -> str:
    """Two digits that matter."""
    return f"{value:.0f}" if value >= 100.0 else f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def clock(unix_s: float) -> str:
    """The time of day, by the clock of whoever looks."""
    return datetime.fromtimestamp(unix_s).astimezone().strftime("%H:%M:%S")


def many(number: int, word: str) -> str:
    """1 request, 2 requests."""
    return f"{number:,} {word}{'s' * (number != 1)}"
