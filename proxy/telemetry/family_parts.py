"""Families in parts of few samples, so that the loop can run between them.

Parts of one family follow each other. `exposition.pieces` joins them again.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from penstock.proxy.telemetry.family_table import FAMILIES
from penstock.proxy.telemetry.histogram import Histogram

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
