"""The text of /metrics, rendered on the loop in slices.

One `generate_latest` for 64 backends blocks the loop for tens of milliseconds. A thread
does not help, because it holds the interpreter lock (gaps of 50 ms were measured). So
families come in parts of few samples, those of one family after each other. Each is rendered alone,
and the loop runs between them. The text is kept for KEPT_S, so several scrapers cost one rendering.
Where rendering takes long it is kept longer: nobody takes more than a share of the CPU by asking.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from time import perf_counter, thread_time
from typing import Final

from prometheus_client import Metric, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from penstock.proxy.telemetry.family_table import FAMILIES
from penstock.proxy.telemetry.pool_metrics import Histogram

# Making a sample takes about 2 us, and rendering it 5.
PART_SAMPLES: Final = 50

Row = tuple[Sequence[str], float]


def parts(name: str, rows: Iterable[Row]) -> Iterator[Metric]:
    """The counter or gauge `name`, with a sample for each row of label values and a number."""
    told = FAMILIES[name]
    kind = CounterMetricFamily if told.kind == "counter" else GaugeMetricFamily
    rest = iter(rows)
    while True:
        part = kind(f"penstock_{name}", told.text, labels=told.labels)
        batch = list(islice(rest, PART_SAMPLES))
        for labels, value in batch:
            part.add_metric(labels, value)
        yield part
        if len(batch) < PART_SAMPLES:
            return


def single(name: str, value: float) -> Iterator[Metric]:
    """A counter or gauge without labels."""
    return parts(name, (((), value),))


def histograms(
    name: str, rows: Iterable[tuple[Sequence[str], Histogram]], bounds: Sequence[float] = ()
) -> Iterator[Metric]:
    """The histogram `name`, one a part. `bounds`: the upper bounds to tell, if not all."""
    told = FAMILIES[name]
    rest = iter(rows)
    row = next(rest, None)
    while True:
        part = HistogramMetricFamily(f"penstock_{name}", told.text, labels=told.labels)
        if row is not None:
            labels, histogram = row
            part.add_metric(labels, histogram.buckets(bounds), histogram.total)
        yield part
        row = next(rest, None)
        if row is None:
            return


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
KEPT_S: Final = 1.0
# The most of the CPU that rendering takes. A thousand backends take 0.35 s, interpreted.
SHARE_MAX: Final = 0.05
SLICE_S: Final = 0.0005


class _Piece(Collector):
    """A registry of one family, as `generate_latest` wants it."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


def pieces(families: Iterable[Metric]) -> Iterator[bytes]:
    """The text of each family, or of each part of one: parts follow each other."""
    before = ""
    for family in families:
        text: bytes = generate_latest(_Piece(family))
        if family.name == before:  # HELP and TYPE stand before the first part only
            lines = text.splitlines(keepends=True)
            text = b"".join([line for line in lines if not line.startswith(b"#")])
        yield text
        before = family.name


class Exposition:
    """Renders /metrics for all scrapers, one rendering at a time."""

    def __init__(
        self,
        collector: Collector,
        slice_s: float = SLICE_S,
        now: Callable[[], float] = perf_counter,
        cpu: Callable[[], float] = thread_time,
    ) -> None:
        """`cpu`: the seconds that this thread has computed."""
        self._collector = collector
        self._now, self._cpu = now, cpu
        self._slice_s = slice_s
        self._body = b""
        self._kept_until_s = float("-inf")
        self._rendering = asyncio.Lock()

    async def body(self) -> bytes:
        async with self._rendering:
            if self._now() >= self._kept_until_s:
                self._body, worked_s = await self._render()
                self._kept_until_s = self._now() + max(KEPT_S, worked_s / SHARE_MAX)
            return self._body

    async def _render(self) -> tuple[bytes, float]:
        """The text, and how long it took the CPU, without what others did meanwhile."""
        parts, worked_s = [], 0.0
        began_s, began_cpu_s = self._now(), self._cpu()
        for part in pieces(self._collector.collect()):
            parts.append(part)
            if self._now() - began_s > self._slice_s:
                worked_s += self._cpu() - began_cpu_s
                await asyncio.sleep(0)
                began_s, began_cpu_s = self._now(), self._cpu()
        return b"".join(parts), worked_s + self._cpu() - began_cpu_s
