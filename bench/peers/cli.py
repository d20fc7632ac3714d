"""`penstock bench peers`: penstock and other proxies before the same simulated fleet.

All peers are started once; each workload is played to one after the other, the same requests at
the same times, in an order that alternates. Every answer is compared with the only right one.
Exit 0 when all were whole, 1 when some were not or no peer could start, 2 on a usage error.
"""

import argparse
import os
import platform
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

import orjson

from bench.meter import peak_memory_of
from bench.peers.cell import Cell, measure
from bench.peers.field import Peer, UnknownPeer, start_all
from bench.peers.fleet import Fleet
from bench.peers.peer import Running
from bench.peers.report import both_table, peers_table
from bench.peers.workload import Workload
from bench.processes import NotStarted
from bench.routing.cell import recorded
from bench.routing.generators import GENERATORS
from bench.routing.trace import UnknownFormat
from bench.sim.profiles import GPUS

PEERS: Final = (
    "penstock,penstock:session,nginx,HAProxy,Envoy,smg,smg:cache_aware,vllm-router,"
    "vllm-router:cache_aware,LiteLLM"
)
Measured = dict[tuple[str, Peer], list[Cell]]


def main(argv: Sequence[str]) -> int:
    """The command; returns its exit status."""
    options = _parser().parse_args(argv)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="penstock-bench-")))
        try:
            fleet = stack.enter_context(Fleet(options.servers, options.profile, options.speedup))
        except NotStarted as error:
            print(f"penstock bench: the simulated servers did not start: {error}", file=sys.stderr)
            return 1
        running, missing = start_all(options.peers, fleet.ports, folder, stack)
        cells = _run(options, fleet, running)
        memory = {peer: peak_memory_of(each.pid) / 2**20 for peer, each in running.items()}
    print(f"$ {shlex.join(['penstock', 'bench', 'peers', *argv])}")
    for workload in _workloads(options, 1):
        mine = {peer: cells[workload.title, peer] for peer in running}
        print(f"\n{workload.title}, load {workload.load:g}\n")
        print(peers_table(mine, missing, memory))
        if options.virtual:
            print(f"\n{both_table(mine, workload.in_virtual_time)}")
    print(_about(options, running))
    if options.json is not None:
        _save(options.json, cells)
    broken = [cell.faults for runs in cells.values() for cell in runs if cell.faults]
    return 1 if broken or not running else 0


def _run(options: argparse.Namespace, fleet: Fleet, running: Mapping[Peer, Running]) -> Measured:
    cells: Measured = {}
    for number in range(options.rounds):
        for workload in _workloads(options, number + 1):
            prompts = workload.prompts()
            peers = list(running)
            shift = number % max(1, len(peers))
            for peer in peers[shift:] + peers[:shift]:
                _say(f"round {number + 1}, {workload.title}: {peer.label}")
                cell = measure(running[peer], fleet, prompts, options.speedup)
                cells.setdefault((workload.title, peer), []).append(cell)
    return cells


def _workloads(options: argparse.Namespace, seed: int) -> list[Workload]:
    length_s = options.seconds * options.speedup
    return [
        Workload(name, options.profile, options.servers, options.load, length_s, seed)
        for name in options.workloads
    ]


def _about(options: argparse.Namespace, running: Mapping[Peer, Running]) -> str:
    versions = ", ".join(dict.fromkeys(each.version for each in running.values()))
    today = datetime.now(UTC).date().isoformat()
    return (
        f"\n{today}, {os.cpu_count()} cores shared by peer, fleet and client, "
        f"CPython {platform.python_version()}, {versions}.\n"
        f"{options.servers} x {options.profile}, {options.speedup:g} times as fast as they are; "
        f"{options.rounds} rounds of {options.seconds:g} s; latencies in the engines' seconds, "
        "CPU in real ones."
    )


def _save(path: Path, cells: Measured) -> None:
    rows = [
        {
            "workload": title,
            "peer": peer.name,
            "rule": peer.rule,
            "shares": cell.shares,
            "faults": cell.faults,
            "requests": cell.requests,
            "cpu_ms_per_request": cell.cpu_ms_per_request,
            "cpu_us_per_event": cell.cpu_us_per_event,
            **cell.figures,
        }
        for (title, peer), runs in cells.items()
        for cell in runs
    ]
    path.write_bytes(orjson.dumps({"cells": rows}, option=orjson.OPT_INDENT_2))


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock bench peers",
        description="penstock and other proxies before the same simulated fleet.",
    )
    add = parser.add_argument
    names = ", ".join(GENERATORS)
    add("--peers", type=_peers, default=PEERS, metavar="A,B:RULE", help=f"(default {PEERS})")
    add(
        "--workloads",
        nargs="+",
        type=_workload,
        default=["skewed", "shared_prefix", "agentic"],
        metavar="W",
        help=f"trace files, or of {names} (default skewed shared_prefix agentic)",
    )
    add("--load", type=_positive, default=0.6, metavar="X", help="of the fleet (default 0.6)")
    add("--servers", type=_count, default=4, metavar="N", help="simulated servers (default 4)")
    add("--profile", choices=GPUS, default="70b-4xh100", help="model and GPUs of each")
    add("--speedup", type=_positive, default=5.0, metavar="X", help="of the engines (default 5)")
    add("--seconds", type=_positive, default=10.0, metavar="S", help="of a round (default 10)")
    add("--rounds", type=_count, default=1, metavar="N", help="each with a seed of its own (1)")
    add("--virtual", action="store_true", help="beside penstock's policies: in virtual time")
    add("--json", type=Path, metavar="OUT", help="write every run's figures")
    return parser


def _peers(text: str) -> list[Peer]:
    try:
        return list(dict.fromkeys(map(Peer.parsed, text.split(","))))
    except UnknownPeer as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _workload(text: str) -> str:
    if text in GENERATORS:
        return text
    try:
        recorded(Path(text), 1.0, Random(0))
    except (OSError, UnknownFormat) as error:
        names = ", ".join(GENERATORS)
        raise argparse.ArgumentTypeError(f"{error}; a file, or one of {names}") from None
    return text


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError("a whole number above 0")
    return int(text)


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("a number above 0")
    return value
