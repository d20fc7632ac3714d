"""`penstock bench overhead`: what penstock costs beside other proxies.

Starts a backend that is only its bytes, the peers before it, and a load client;
prints one table and its own command line. Loopback only. Exit 0 when every
stream and request through penstock was whole, 1 when some was not, no peer
could start, or it costs 1.15 times the least in its history, 2 on a usage error.
"""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from penstock.bench.arguments import count, option
from penstock.bench.overhead import history
from penstock.bench.overhead.loads import DEFAULT, QUICK, Plan
from penstock.bench.overhead.rounds import DIRECT, MEASURED, Results, Rounds
from penstock.bench.peers.field import Peer, peers, start_all
from penstock.bench.peers.peer import Running
from penstock.bench.processes import start_server, stop
from penstock.bench.report import head, machine, row, save

# With one backend behind them their rules have nothing to choose: the cheapest where one costs.
DEFAULT_PEERS: Final = (
    "penstock,nginx,HAProxy,Envoy,smg:round_robin,vllm-router:round_robin,LiteLLM,aiohttp"
)

# The measured one over each of these.
RATIOS: Final = ("nginx", "vllm-router", "smg", "aiohttp")


def run(options: Namespace) -> int:
    plan = QUICK if options.quick else DEFAULT
    if options.rounds is not None:
        plan = plan.of_rounds(options.rounds)
    before = history.read(options.history) if options.history else []  # a wrong file ends it here
    with ExitStack() as stack, TemporaryDirectory(prefix="penstock-bench-") as folder:
        backend = start_backend()
        stack.callback(stop, backend.process)
        started, missing = start_all(options.peers, [backend.port], Path(folder), stack)
        running = {peer.label: each for peer, each in started.items()}
        for peer, reason in missing.items():
            print(f"penstock bench: without {peer.label}: {reason}", file=sys.stderr)
        if not running:
            return 1
        results = Rounds(plan, backend, running).run()
    print(report(plan, results, running, missing))
    save(options.json, _content(options.command, results, running))
    crept = []
    if options.history:
        line = _line(options.history, plan, results, running)
        history.add(options.history, line)
        crept = history.dearer(line, before)
    for what in crept:
        print(f"Dearer than before: {what}.")
    ours = {subject for subject in results.faulty if subject.split()[0] in (MEASURED, DIRECT)}
    return 1 if ours or crept else 0


def arguments(parser: ArgumentParser) -> None:
    file = "add a line of ratios to nginx and aiohttp to this file of CSV; exit 1 if one is more"
    for name, kind, default, text in (
        ("--rounds N", count, None, "rounds (default 2)"),
        ("--quick", bool, None, "three minutes, rough figures"),
        ("--peers A,B:RULE", peers, DEFAULT_PEERS, "which to measure"),
        ("--json OUT", Path, None, "write every round's values"),
        ("--history FILE", Path, None, f"{file} than {history.BOUND:g} times the least in it"),
    ):
        option(parser, name, kind, default, text)


def _line(
    path: Path, plan: Plan, results: Results, running: Mapping[str, Running]
) -> dict[str, str]:
    versions = "".join([each.version for each in running.values()])
    about = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": history.commit_at(path),
        "build": "interpreted" if "(interpreted" in versions else "compiled",
        "rounds": str(plan.rounds),
    }
    return history.line_of(results, list(running), about)


def start_backend() -> Running:
    process, port = start_server("penstock.bench.overhead.backend")
    return Running("", port, process.pid, process)


def report(
    plan: Plan,
    results: Results,
    running: dict[str, Running],
    missing: Mapping[Peer, str],
) -> str:
    """The table with what is needed to read it."""
    versions = ", ".join(peer.version for peer in running.values())
    lines = [
        table(results, plan, list(running)),
        "",
        f"{machine('peer, backend and load client')}, {versions}.",
        f"Medians of {plan.rounds} alternating rounds ({plan.wide.rounds} with "
        f"{plan.wide.streams:,} streams, {plan.requests[-1].rounds} with one and with long "
        "prompts), in parentheses the least and the greatest round.",
        f"Beside the {plan.wide.streams:,} streams /metrics is scraped once a second where there "
        "is one. penstock writes its access log (to /dev/null), the others none; `direct` has no "
        "proxy between, and its first-byte latency is its own, not an addition.",
    ]
    lines += [
        f"{label} was given {peer.load_share:.0%} of the streams and requests, and is checked by "
        "its words, as it writes events anew."
        for label, peer in running.items()
        if peer.rewrites
    ]
    lines += [f"Not measured: {peer.label} ({reason})." for peer, reason in missing.items()]
    lines += [f"Saturated: {text}." for text in results.saturated]
    lines += [f"Fault: {text}." for text in results.faults]
    return "\n".join(lines)


def _content(command: str, results: Results, running: dict[str, Running]) -> dict[str, Any]:
    return {
        "command": command,
        "versions": {name: peer.version for name, peer in running.items()},
        "values": results.values,
        "saturated": results.saturated,
        "faults": results.faults,
    }


# The table: a row a metric, a column a subject, then the ratios -----------------------------


class Row(NamedTuple):
    """One metric: its label and how its values are written."""

    metric: str
    label: str
    digits: int = 1
    ratios: bool = False
    spread: bool = False
    total: bool = False  # of all rounds: a fault in one is not averaged away


def rows(plan: Plan) -> list[Row]:
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
