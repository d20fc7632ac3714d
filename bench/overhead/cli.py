"""`penstock bench overhead`: what penstock costs beside nginx, HAProxy and aiohttp.

Starts a backend that is only its bytes, the peers before it, and a load client;
prints one table and its own command line. Loopback only. Exit 0 when every
stream and request was whole, 1 when some was not or no peer could start, 2 on a
usage error.
"""

import argparse
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from bench.overhead.peers import START, Running, start_backend
from bench.overhead.plan import DEFAULT, QUICK, Plan
from bench.overhead.processes import NotStarted, stop
from bench.overhead.results import Results
from bench.overhead.rounds import Rounds
from bench.overhead.table import table


def main(argv: Sequence[str]) -> int:
    options = _parser().parse_args(argv)
    plan = _plan(options)
    with ExitStack() as stack, TemporaryDirectory(prefix="penstock-bench-") as folder:
        try:
            backend = start_backend()
        except NotStarted as error:
            print(f"penstock bench: the backend did not start: {error}", file=sys.stderr)
            return 1
        stack.callback(stop, backend.process)
        running, missing = _start(options.peers, backend, Path(folder), stack)
        if not running:
            return 1
        results = Rounds(plan, backend, running).run()
    command = shlex.join(["penstock", "bench", "overhead", *argv])
    print(report(command, plan, results, running, missing))
    if options.json is not None:
        _save(options.json, command, results, running)
    return 1 if results.faults else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock bench overhead",
        description="CPU, latency and memory of penstock beside other proxies.",
    )
    parser.add_argument("--rounds", type=_count, metavar="N", help="rounds (default 5)")
    parser.add_argument("--quick", action="store_true", help="below a minute, rough figures")
    parser.add_argument(
        "--peers",
        type=_peers,
        default=list(START),
        metavar="A,B",
        help=f"which to measure (default {','.join(START)})",
    )
    parser.add_argument(
        "--patience",
        type=float,
        metavar="S",
        help="seconds for measurements to be repeated that others disturbed (default 30)",
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="write every round's values")
    return parser


def _plan(options: argparse.Namespace) -> Plan:
    plan = QUICK if options.quick else DEFAULT
    if options.rounds is not None:
        wide_rounds = min(plan.wide_rounds, options.rounds)
        plan = replace(plan, rounds=options.rounds, wide_rounds=wide_rounds)
    if options.patience is not None:
        plan = replace(plan, repeats_s=options.patience)
    return plan


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise ValueError(text)
    return count


def _peers(text: str) -> list[str]:
    names = {name.lower(): name for name in START}
    asked = [name.strip().lower() for name in text.split(",")]
    unknown = [name for name in asked if name not in names]
    if unknown:
        raise argparse.ArgumentTypeError(f"no such peer: {', '.join(unknown)}")
    return [names[name] for name in dict.fromkeys(asked)]


def _start(
    names: Sequence[str], backend: Running, folder: Path, stack: ExitStack
) -> tuple[dict[str, Running], dict[str, str]]:
    """Start the peers; those that cannot start are named with the reason."""
    running: dict[str, Running] = {}
    missing: dict[str, str] = {}
    for name in names:
        own = folder / name
        own.mkdir()
        try:
            running[name] = START[name](backend.port, own)
        except NotStarted as error:
            missing[name] = str(error)
            print(f"penstock bench: without {name}: {error}", file=sys.stderr)
        else:
            stack.callback(stop, running[name].process)
    return running, missing


def report(
    command: str,
    plan: Plan,
    results: Results,
    running: dict[str, Running],
    missing: dict[str, str],
) -> str:
    """The table with what is needed to read it."""
    versions = ", ".join(peer.version for peer in running.values())
    today = datetime.now(UTC).date().isoformat()
    lines = [
        f"$ {command}",
        "",
        table(results, plan, list(running)),
        "",
        f"{today}, {os.cpu_count()} cores shared by peer, backend and load client, "
        f"CPython {platform.python_version()}, {versions}.",
        f"Medians of {plan.rounds} alternating rounds ({plan.wide_rounds} with "
        f"{plan.wide_streams:,} streams), in parentheses the least and the greatest round.",
        "penstock writes its access log (to /dev/null), nginx and HAProxy none; "
        "`direct` has no proxy between, and its first-byte latency is its own, not an addition.",
    ]
    lines += [f"Not measured: {name} ({reason})." for name, reason in missing.items()]
    lines += [f"Saturated: {text}." for text in results.saturated]
    lines += [f"Fault: {text}." for text in results.faults]
    return "\n".join(lines)


def _save(path: Path, command: str, results: Results, running: dict[str, Running]) -> None:
    content = {
        "command": command,
        "versions": {name: peer.version for name, peer in running.items()},
        "values": results.values,
        "saturated": results.saturated,
        "faults": results.faults,
    }
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content)) + b"\n")
