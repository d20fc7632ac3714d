"""What the page's charts have shown in the last 24 hours, for whoever looks later.

Two resolutions of the same series: each second of a quarter of an hour, and the means of each
minute of a day. Together 2,340 rows of 36 bytes, however many pools and backends there are.
"""

import asyncio
import logging
from array import array
from collections.abc import Callable, Mapping, Sequence
from math import isnan, nan
from time import time
from typing import Any, Final

from penstock.proxy.admin.page.rates import Rates

logger = logging.getLogger(__name__)

TAKE_S: Final = 1.0
MINUTE_S: Final = 60.0
SECONDS: Final = 900
MINUTES: Final = 1_440
# Sums over all pools, and the times to first token of the pool with the longest.
SERIES: Final = ("answer_tokens_per_s", "prompt_tokens_per_s", "ttft_p50_s", "ttft_p95_s")
Row = list[float]  # one figure for each of SERIES. NaN: not known


class Rows:
    """The last `most` rows, with their times."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._times = array("d")
        self._columns = [array("f") for _ in SERIES]

    def add(self, at_s: float, row: Row) -> None:
        """Times of a clock that was put back would not rise: what was before is dropped."""
        drop = len(self._times) if self._times and at_s < self._times[-1] else 0
        for column, value in zip([self._times, *self._columns], [at_s, *row], strict=True):
            column.append(value)
            del column[: max(drop, len(column) - self._most)]

    def told(self) -> list[list[float]]:
        """Columns: times (Unix), then SERIES."""
        times = [round(at_s, 1) for at_s in self._times]
        return [times, *[[round(each, 4) for each in column] for column in self._columns]]


class History:
    """`rates`: those of the last look, by pool."""

    def __init__(self, rates: Rates, wall: Callable[[], float] = time) -> None:
        self.rates: dict[str, dict[str, object]] = {}
        self.seconds, self.minutes = Rows(SECONDS), Rows(MINUTES)
        self._source = rates
        self._wall = wall
        self._minute: list[Row] = []
        self._minute_s = 0.0

    async def watch(self, viewed: Callable[[], bool]) -> None:
        """Look each second, until it is cancelled. `viewed`: whether somebody has the page open."""
        while True:
            await asyncio.sleep(TAKE_S)
            try:
                await self._source.take(parts=viewed())
                self.add(self._source.look())
            except Exception:
                logger.exception("the page's history has a gap")

    def add(self, rates: dict[str, dict[str, object]]) -> None:
        """Take the rates of a second."""
        self.rates, at_s, row = rates, self._wall(), _row(rates)
        self.seconds.add(at_s, row)
        if self._minute and not 0.0 <= at_s - self._minute_s < MINUTE_S:
            self.minutes.add(
                self._minute_s, [_mean(each) for each in zip(*self._minute, strict=True)]
            )
            self._minute = []
        if not self._minute:
            self._minute_s = at_s
        self._minute.append(row)

    def told(self) -> dict[str, object]:
        return {"series": SERIES, "seconds": self.seconds.told(), "minutes": self.minutes.told()}


def _row(rates: Mapping[str, Mapping[str, Any]]) -> Row:
    pools = rates.values()
    sums = [_sum([each[name] for each in pools]) for name in SERIES[:2]]
    slowest = max(pools, key=lambda each: each["ttft_p95_s"] or 0.0, default={})
    times = [slowest.get(name) for name in SERIES[2:]]
    return [*sums, *[nan if each is None else each for each in times]]


def _sum(values: Sequence[float | None]) -> float:
    known = [each for each in values if each is not None]
    return sum(known) if known else nan


def _mean(values: Sequence[float]) -> float:
    known = [each for each in values if not isnan(each)]
    return sum(known) / len(known) if known else nan
