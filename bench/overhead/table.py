"""The one table of a run, in Markdown: a row a metric, a column a subject, then the ratios."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.overhead.plan import Plan
from bench.overhead.results import DIRECT, Results

RATIOS: Final = ("nginx", "aiohttp")
MEASURED: Final = "penstock"


@dataclass(frozen=True, slots=True)
class Row:
    """One metric: its label and how its values are written."""

    metric: str
    label: str
    digits: int = 1
    ratios: bool = False
    spread: bool = False
    total: bool = False  # of all rounds: a fault in one is not averaged away


def rows(plan: Plan) -> list[Row]:
    """The rows of a run of these sizes."""
    load = f"{plan.streams} streams x {plan.events_per_s}/s"
    wide = f"{plan.wide_streams:,} streams x {plan.wide_events_per_s}/s"
    return [
        Row("stream_us", f"us of CPU per streamed event, {load}", 1, True, True),
        Row("request_us", "us of CPU per small JSON request", 1, True, True),
        Row("first_byte_p50_ms", "added first-byte latency, idle, p50 ms", 3, True),
        Row("first_byte_p99_ms", "added first-byte latency, idle, p99 ms", 3, True),
        Row("memory_mib", f"peak memory after {load}, MiB", 1, True),
        Row("stream_per_s", f"events/s arrived of {plan.streams * plan.events_per_s:,}", 0),
        Row("stream_broken", "broken streams, all rounds", 0, total=True),
        Row("stream_others_percent", "of a core: others on the machine, %", 0),
        Row("request_per_s", f"requests/s answered of {plan.requests_per_s:,}", 0),
        Row("request_broken", "failed requests, all rounds", 0, total=True),
        Row("request_others_percent", "of a core: others on the machine, %", 0),
        Row("wide_broken", f"{wide}: broken streams, all rounds", 0, total=True),
        Row("wide_per_s", f"events/s arrived of {plan.wide_streams * plan.wide_events_per_s:,}", 0),
        Row("wide_us", "us of CPU per event", 1, True, True),
        Row("wide_gap_p99_ms", "inter-event gap, p99 ms", 2),
        Row("wide_gap_added_p99_ms", "added to direct's gap, p99 ms", 2, spread=True),
        Row("wide_late_p50_ms", "lateness of events, p50 ms", 2),
        Row("wide_late_p99_ms", "lateness of events, p99 ms", 2),
        Row("wide_late_added_p99_ms", "added to direct's lateness, p99 ms", 2, spread=True),
        Row("wide_memory_mib", "peak memory after it, MiB", 1, True),
        Row("wide_client_percent", "of a core: load client, %", 0),
        Row("wide_backend_percent", "of a core: backend, %", 0),
        Row("wide_others_percent", "of a core: others on the machine, %", 0),
    ]


def cell(results: Results, row: Row, subject: str) -> str:
    """The median, with the least and the greatest round where the spread is shown."""
    middle = results.median(row.metric, subject)
    if middle is None:
        return "-"
    values = results.rounds(row.metric, subject)
    text = f"{sum(values) if row.total else middle:,.{row.digits}f}"
    if row.spread and len(values) > 1:
        text += f" ({min(values):,.{row.digits}f} to {max(values):,.{row.digits}f})"
    return text


def ratio_cell(results: Results, row: Row, other: str) -> str:
    ratio = results.ratio(row.metric, MEASURED, other) if row.ratios else None
    return "-" if ratio is None else f"{ratio:.2f}"


def table(results: Results, plan: Plan, peers: Sequence[str]) -> str:
    """The table; a peer that was not measured has dashes."""
    subjects = [DIRECT, *peers]
    others = [name for name in RATIOS if name in peers and MEASURED in peers]
    heads = ["", *subjects, *(f"{MEASURED} / {name}" for name in others)]
    lines = [heads, ["---", *("---:" for _ in heads[1:])]]
    for row in rows(plan):
        cells = [cell(results, row, subject) for subject in subjects]
        if any(text != "-" for text in cells):
            lines.append([row.label, *cells, *(ratio_cell(results, row, name) for name in others)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
