"""The one table of a run, in Markdown: a row a metric, a column a subject, then the ratios."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.bench.overhead.loads import Plan
from penstock.bench.overhead.rounds import DIRECT, Results
from penstock.bench.report import head, row

# The measured one over each of these.
RATIOS: Final = ("nginx", "vllm-router", "smg", "aiohttp")
MEASURED: Final = "penstock"


class Row(NamedTuple):
    """One metric: its label and how its values are written."""

    metric: str
    label: str
    digits: int = 1
    ratios: bool = False
    spread: bool = False
    total: bool = False  # of all rounds: a fault in one is not averaged away


def rows(plan: Plan) -> list[Row]:
    """The rows of a run of these sizes."""
    load, wide = plan.streams[0], plan.wide
    costs = [
        Row(f"{each.metric}_us", f"us of CPU per event, {each.title}", 1, True, True)
        for each in plan.streams
    ]
    costs += [
        Row(f"{each.metric}_us", f"us of CPU per {each.title}", 1, True, True)
        for each in plan.requests
    ]
    checks = [
        row
        for each in plan.loads[:-1]
        for row in (
            Row(f"{each.metric}_percent", f"{each.title}: of the wanted rate, %", 0),
            Row(f"{each.metric}_broken", "broken, all rounds", 0, total=True),
            Row(f"{each.metric}_others_percent", "of a core: others on the machine, %", 0),
        )
    ]
    return [
        *costs,
        Row("first_byte_p50_ms", "added first-byte latency, idle, p50 ms", 3, True),
        Row("first_byte_p99_ms", "added first-byte latency, idle, p99 ms", 3, True),
        Row("memory_mib", f"peak memory after {load.title}, MiB", 1, True),
        *checks,
        Row("wide_broken", f"{wide.title}: broken streams, all rounds", 0, total=True),
        Row("wide_percent", "of the wanted rate, %", 0),
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


def ratio_cell(results: Results, row: Row, measured: str, other: str) -> str:
    ratio = results.ratio(row.metric, measured, other) if row.ratios else None
    return "-" if ratio is None else f"{ratio:.2f}"


def table(results: Results, plan: Plan, peers: Sequence[str]) -> str:
    """The table; a peer that was not measured has dashes."""
    subjects = [DIRECT, *peers]
    measured = next((label for label in peers if label.split()[0] == MEASURED), "")
    others = [label for label in peers if measured and label.split()[0] in RATIOS]
    heads = ["", *subjects, *(f"{MEASURED} / {label.split()[0]}" for label in others)]
    lines = [head(*heads)]
    for each in rows(plan):
        cells = [cell(results, each, subject) for subject in subjects]
        if any(text != "-" for text in cells):
            ratios = [ratio_cell(results, each, measured, label) for label in others]
            lines.append(row(each.label, *cells, *ratios))
    return "\n".join(lines)
