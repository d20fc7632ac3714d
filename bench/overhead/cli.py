"""`penstock bench overhead`: what penstock costs beside other proxies.

Starts a backend that is only its bytes, the peers before it, and a load client;
prints one table and its own command line. Loopback only. Exit 0 when every
stream and request through penstock was whole, 1 when some was not, no peer
could start, or it costs 1.15 times the least in its history, 2 on a usage error.
"""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from penstock.bench.arguments import count, nonnegative, option
from penstock.bench.overhead import history
from penstock.bench.overhead.loads import DEFAULT, QUICK, Plan
from penstock.bench.overhead.rounds import DIRECT, Results, Rounds
from penstock.bench.overhead.table import MEASURED, table
from penstock.bench.peers.field import Peer, peers, start_all
from penstock.bench.peers.peer import Running
from penstock.bench.processes import start_server, stop
from penstock.bench.report import machine, save

# With one backend behind them their rules have nothing to choose: the cheapest where one costs.
DEFAULT_PEERS: Final = (
    "penstock,nginx,HAProxy,Envoy,smg:round_robin,vllm-router:round_robin,LiteLLM,aiohttp"
)


def run(options: Namespace) -> int:
    """Print the table; returns the exit status."""
    plan = _plan(options)
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
    patience = "seconds for measurements to be repeated that others disturbed (default 30)"
    file = "add a line of ratios to nginx and aiohttp to this file of CSV; exit 1 if one is more"
    for name, kind, default, text in (
        ("--rounds N", count, None, "rounds (default 2)"),
        ("--quick", bool, None, "three minutes, rough figures"),
        ("--peers A,B:RULE", peers, DEFAULT_PEERS, "which to measure"),
        ("--patience S", nonnegative, None, patience),
        ("--json OUT", Path, None, "write every round's values"),
        ("--history FILE", Path, None, f"{file} than {history.BOUND:g} times the least in it"),
    ):
        option(parser, name, kind, default, text)


def _plan(options: Namespace) -> Plan:
    plan = QUICK if options.quick else DEFAULT
    if options.rounds is not None:
        plan = plan.of_rounds(options.rounds)
    if options.patience is not None:
        plan = replace(plan, repeats_s=options.patience)
    return plan


def _line(
    path: Path, plan: Plan, results: Results, running: Mapping[str, Running]
) -> dict[str, str]:
    """The line of this run in a history."""
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
