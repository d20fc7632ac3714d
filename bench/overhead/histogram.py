"""Times in bins of 50 us: one addition a sample, percentiles afterwards."""

from math import ceil
from typing import Final

BIN_S: Final = 0.000_05
BINS: Final = 20_000  # up to one second; longer counts as that


class Histogram:
    """Counts per bin. Negative times count as none."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts = [0] * BINS

    def observe(self, value_s: float, count: int = 1) -> None:
        index = int(value_s / BIN_S)
        self.counts[0 if index < 0 else index if index < BINS else BINS - 1] += count

    def percentile_ms(self, percent: float) -> float:
        """The middle of the bin that holds the percentile; 0 when there is no sample."""
        wanted = ceil(sum(self.counts) * percent / 100)
        seen = 0
        for index, count in enumerate(self.counts):
            seen += count
            if count and seen >= wanted:
                return (index + 0.5) * BIN_S * 1000
        return 0.0
