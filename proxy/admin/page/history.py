"""How fast the counters of each pool grow, now and in the last 24 hours.

Nothing is counted again: a rate is the growth since about RATE_S ago. Streams that broke off have
the status 200, so they are counted where failures are kept. The charts have two resolutions of the
same series: each second of a quarter of an hour, and the means of each minute of a day. Together
2,340 rows of 36 bytes, however many pools and backends there are.
"""

import asyncio
import logging
from array import array
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from math import isnan, nan
from time import time
from typing import Any, Final, NamedTuple

from penstock.proxy.data.plane import DataPlane
from penstock.proxy.telemetry import waterfall as parts_of
from penstock.proxy.telemetry.recent import Kept
from penstock.proxy.telemetry.record import Record
from penstock.proxy.telemetry.waterfall import waterfall

WINDOW_S: Final = 60.0
STREAMS_MAX: Final = 1_024  # of each pool
# The parts of a waterfall until the first token, as the page names them.
PARTS: Final = {
    parts_of.RECEIVE: "client",
    parts_of.READ: "penstock",
    parts_of.CHOOSE: "penstock",
    parts_of.QUEUE: "queue",
    parts_of.FAILED: "failed",
    parts_of.CONNECT: "connect",
    parts_of.HEAD: "engine",
    parts_of.PREFILL: "engine",
}
NAMES: Final = ("client", "penstock", "queue", "failed", "connect", "engine")


class _Stream(NamedTuple):
    ended_s: float
    ttft_s: float
    parts: list[float] | None  # in the order of NAMES. None: nobody looked


class FirstTokens:
    """Where the time to first tokens went, of the streams of the last minute.

    Of a second with more than some hundred requests only those count that are kept (`Recent`).
    """

    def __init__(self) -> None:
        self._pools: dict[str, deque[_Stream]] = {}

    def add(self, kept: Kept, now_s: float, *, parts: bool = True) -> None:
        """Add a request that has ended. `parts`: somebody looks where its time went, too."""
        record = kept.record
        first_s = record.first_token_s
        if record.streamed and first_s and record.ended_s > now_s - WINDOW_S:
            streams = self._pools.setdefault(record.pool, deque(maxlen=STREAMS_MAX))
            told = _until_first(record) if parts else None
            streams.append(_Stream(record.ended_s, first_s - record.began_s, told))

    def told(self, now_s: float) -> dict[str, dict[str, object]]:
        """Percentiles and the mean of each part, by pool."""
        for streams in self._pools.values():
            while streams and streams[0].ended_s <= now_s - WINDOW_S:
                streams.popleft()
        self._pools = {name: streams for name, streams in self._pools.items() if streams}
        return {name: _of(streams) for name, streams in self._pools.items()}


def _of(streams: Collection[_Stream]) -> dict[str, object]:
    times = sorted([each.ttft_s for each in streams])
    count = len(times)
    parts = [each.parts for each in streams if each.parts is not None] or [[0.0] * len(NAMES)]
    totals = map(sum, zip(*parts, strict=True))
    return {
        "streams": count,
        "ttft_p50_s": round(times[count // 2], 4),
        "ttft_p95_s": round(times[min(count - 1, int(0.95 * count))], 4),
        "ttft_mean_s": round(sum(times) / count, 4),
        "parts": {
            name: round(total / len(parts), 5) for name, total in zip(NAMES, totals, strict=True)
        },
    }


def _until_first(record: Record) -> list[float]:
    found = [0.0] * len(NAMES)
    for part in waterfall(record, record.ended_s):
        name = PARTS.get(part.name)
        if name is not None:
            found[NAMES.index(name)] += part.seconds
    return found


RATE_S: Final = 15.0
# After such a gap the process did not run: what was before says nothing of now.
GAP_S: Final = 5.0
AT_ONCE: Final = 16
_BROKEN: Final = "stream_broken"
_REFUSALS: Final = frozenset({429, 503})
_OTHER_FAILURES: Final = 5  # statuses that are not registered are counted by their first digit
_NO_FIRST_TOKENS: Final[dict[str, object]] = {
    "streams": 0,
    "ttft_p50_s": None,
    "ttft_p95_s": None,
    "ttft_mean_s": None,
    "parts": {},
}


class _Counts(NamedTuple):
    """Of one pool since the start."""

    requests: float = 0.0
    prompt_tokens: float = 0.0
    answer_tokens: float = 0.0
    refused: float = 0.0
    failed: float = 0.0


_NAMES: Final = [f"{name}_per_s" for name in _Counts._fields]


class Rates:
    """The pools' rates. Call `take`, then `look`, about once a second."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._first_tokens = FirstTokens()
        self._looks: deque[tuple[float, dict[str, _Counts]]] = deque()
        self._seen = 0  # the number of the last request that was looked at
        self._broken: dict[str, int] = {}  # by pool: streams that broke off

    def look(self) -> dict[str, dict[str, object]]:
        """The rates of each pool now. Null: not known yet."""
        now_s = self._plane.now()
        if self._looks and now_s > self._looks[-1][0] + GAP_S:
            self._looks.clear()
        counts = {name: self._count(name) for name in self._pools()}
        self._looks.append((now_s, counts))
        while len(self._looks) > 2 and self._looks[1][0] <= now_s - RATE_S:
            self._looks.popleft()
        before_s, before = self._looks[0]
        first_tokens = self._first_tokens.told(now_s)
        return {
            name: _rates(count, before.get(name), now_s - before_s)
            | first_tokens.get(name, _NO_FIRST_TOKENS)
            | self._cost(name, now_s)
            for name, count in counts.items()
        }

    def _pools(self) -> list[str]:
        """Those of the configuration, and "" for requests that came to none."""
        return [*(pool.name for pool in self._plane.fleet.pools), ""]

    async def take(self, *, parts: bool) -> None:
        """Look at the requests that have ended since the last time, some in a turn of the loop.

        `parts`: somebody looks where their time went, too.
        """
        recent, seen, now_s = self._plane.recent, self._seen, self._plane.now()
        last = recent.count
        for number, kept in enumerate(recent.since(seen), 1):
            self._first_tokens.add(kept, now_s, parts=parts)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        for kept in recent.failed():
            if kept.number <= seen:
                break
            if kept.record.error == _BROKEN and kept.number <= last:
                pool = kept.record.pool
                self._broken[pool] = self._broken.get(pool, 0) + 1
        self._seen = last

    def _count(self, name: str) -> _Counts:
        pool = self._plane.metrics.of(name)
        refused, failed = 0, self._broken.get(name, 0)
        for (backend, status), count in pool.requests.items():
            if not backend and status in _REFUSALS:
                refused += count
            elif status >= 500 or status == _OTHER_FAILURES:
                failed += count
        requests = sum(pool.requests.values())
        return _Counts(requests, pool.prompt_tokens, pool.completion_tokens, refused, failed)

    def _cost(self, name: str, now_s: float) -> dict[str, object]:
        costs, per_hour = self._plane.metrics.costs, self._plane.configuration.costs_per_hour
        if name not in per_hour or name not in costs.pools:
            return {"cost_per_hour": None, "cost_per_1k_tokens": None}
        price = costs.per_1k_tokens(name, self._plane.metrics.of(name).tokens, now_s)
        return {
            "cost_per_hour": round(per_hour[name], 4),
            "cost_per_1k_tokens": round(price, 6) if price is not None else None,
        }


def _rates(now: _Counts, before: _Counts | None, time_s: float) -> dict[str, object]:
    if before is None or time_s <= 0.0:
        return dict.fromkeys(_NAMES)
    growths = zip(_NAMES, now, before, strict=True)
    return {name: round(max(0.0, count - was) / time_s, 3) for name, count, was in growths}


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
