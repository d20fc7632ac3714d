"""`penstock bench peers`: penstock and other proxies before the same simulated fleet.

All peers are started once; each workload is played to one after the other, the same requests at
the same times, in an order that alternates. Every answer is compared with the only right one.
Exit 0 when all of penstock's were whole, 1 when some were not or no peer could start, 2 on a usage
error.
"""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, Final

from penstock.bench.arguments import count, option, positive
from penstock.bench.meter import peak_memory_of
from penstock.bench.peers.cell import Cell, measure
from penstock.bench.peers.field import Peer, peers, start_all
from penstock.bench.peers.fleet import Fleet
from penstock.bench.peers.peer import Running
from penstock.bench.peers.workload import Prompt, Workload
from penstock.bench.report import head, machine, row, save, say
from penstock.bench.routing.cell import workload
from penstock.bench.routing.generators import GENERATORS
from penstock.bench.routing.outcome import half_width, quantile
from penstock.bench.routing.trace import Arrival, UnknownFormat
from penstock.bench.sim.profiles import GPUS

PEERS: Final = (
    "penstock,penstock:least_tokens,penstock:session,nginx,HAProxy,Envoy,smg,smg:cache_aware,vllm-router,"
    "vllm-router:cache_aware,vllm-router:power_of_two,LiteLLM"
)
WARM_REQUESTS: Final = 20

_SHOWN: Final = (
    ("ttft_mean_s", "TTFT mean ms", 1e3, 0),
    ("ttft_p50_s", "p50", 1e3, 0),
    ("ttft_p99_s", "p99", 1e3, 0),
    ("itl_p99_s", "ITL p99 ms", 1e3, 0),
    ("e2e_mean_s", "E2E mean ms", 1e3, 0),
    ("goodput", "goodput", 1.0, 3),
    ("hit_rate", "hits", 1.0, 3),
)
_HEADS: Final = (
    "peer",
    "TTFT / first row's",
    "short: mean ms",
    "p99",
    *(title for _, title, _, _ in _SHOWN),
    "shares %",
    "CPU ms / request",
    "core %",
    "MiB",
    "requests",
    "not whole",
)


def run(options: Namespace) -> int:
    """Print the tables; returns the exit status. Raises ArgumentTypeError."""
    try:
        rounds = [_workloads(options, number + 1) for number in range(options.rounds)]
        prompts = {workload: workload.prompts() for each in rounds for workload in each}
    except UnknownFormat as error:
        raise ArgumentTypeError(str(error)) from None
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="penstock-bench-")))
        fleet = stack.enter_context(Fleet(options.servers, options.profile, options.speedup))
        running, missing = start_all(options.peers, fleet.ports, folder, stack)
        played = Run(options, fleet, running, missing)
        played.warm()
        for number, workloads in enumerate(rounds):
            for workload in workloads:
                played.measure(number, workload, prompts[workload])
        memory = {peer: peak_memory_of(each.pid) / 2**20 for peer, each in played.alive.items()}
    for workload in rounds[0]:
        mine = {peer: played.cells.get((workload.name, peer), []) for peer in running}
        print(f"\n{workload.title}, load {workload.load:g}\n")
        print(peers_table(mine, missing, memory))
    print(_about(options, running))
    ours = [runs for (_, peer), runs in played.cells.items() if peer.name == "penstock"]
    broken = any(cell.faults for runs in ours for cell in runs)
    return 1 if broken or not running else 0


class Run:
    """The cells of one run, and the peers that are still alive."""

    def __init__(
        self,
        options: Namespace,
        fleet: Fleet,
        running: Mapping[Peer, Running],
        missing: dict[Peer, str],
    ) -> None:
        self._options = options
        self._fleet = fleet
        self._missing = missing
        self.alive = dict(running)
        self.cells: dict[tuple[str, Peer], list[Cell]] = {}

    def warm(self) -> None:
        """A few requests through each: connections, and what a first one imports."""
        prompts = [Prompt.of(Arrival(0.05 * n, 300, 8), "warm") for n in range(WARM_REQUESTS)]
        for peer, running in self.alive.items():
            say(f"warm: {peer.label}")
            measure(running, self._fleet, prompts, 1.0)

    def measure(self, number: int, workload: Workload, prompts: Sequence[Prompt]) -> None:
        """One workload through all peers, in the order of the round's choice."""
        peers = list(self.alive)
        Random(number).shuffle(peers)
        for peer in peers:
            running = self.alive[peer]
            say(f"round {number + 1}, {workload.title}: {peer.label}")
            cell = measure(running, self._fleet, prompts, self._options.speedup)
            self.cells.setdefault((workload.name, peer), []).append(cell)
            status = running.process.poll()
            if status is not None:
                del self.alive[peer]
                self._missing[peer] = f"it ended with status {status} in round {number + 1}"
            save(self._options.json, {"cells": _rows(self.cells)})


def _workloads(options: Namespace, seed: int) -> list[Workload]:
    length_s = options.seconds * options.speedup
    return [
        Workload(name, options.profile, options.servers, load or options.load, length_s, seed)
        for name, load in options.workloads
    ]


def _about(options: Namespace, running: Mapping[Peer, Running]) -> str:
    versions = ", ".join(dict.fromkeys(each.version for each in running.values()))
    return (
        f"\n{machine('peer, fleet and client')}, {versions}.\n"
        f"{options.servers} x {options.profile}, {options.speedup:g} times as fast as they are; "
        f"{options.rounds} rounds of {options.seconds:g} s; latencies in the engines' seconds, "
        "CPU in real ones. vllm-router's kv_aware and cache_aware ask the servers for the tokens "
        "of every prompt, which the simulated ones give from one process, and get no KV events."
    )


def _rows(cells: Mapping[tuple[str, Peer], Sequence[Cell]]) -> list[dict[str, Any]]:
    return [
        {
            "workload": Path(name).name,
            "peer": peer.name,
            "rule": peer.rule,
            "shares": cell.shares,
            "faults": cell.faults,
            "requests": cell.requests,
            "cpu_ms_per_request": cell.cpu_ms_per_request,
            "core_shares": cell.core_shares,
            "late_ms_p99": cell.late_ms_p99,
            **cell.figures,
        }
        for (name, peer), runs in cells.items()
        for cell in runs
    ]


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--workloads",
        nargs="+",
        type=_workload,
        default=[("skewed", 0.0), ("shared_prefix", 0.0)],
        metavar="W[@X]",
        help=f"trace files, or of {', '.join(GENERATORS)}, at a load of their own"
        " (default skewed shared_prefix)",
    )
    for name, kind, default, text in (
        ("--peers A,B:RULE", peers, PEERS, "which"),
        ("--load X", positive, 0.6, "of the fleet"),
        ("--servers N", count, 4, "simulated servers"),
        ("--profile", GPUS, "8b-1xh100", "model and GPUs of each"),
        ("--speedup X", positive, 1.0, "of the engines"),
        ("--seconds S", positive, 8.0, "of a round"),
        ("--rounds N", count, 1, "each with a seed of its own"),
        ("--json OUT", Path, None, "write every run's figures"),
    ):
        option(parser, name, kind, default, text)


def _workload(text: str) -> tuple[str, float]:
    """A workload and its load; 0.0: that of all."""
    name, _, load = text.partition("@")
    return workload(name), positive(load) if load else 0.0


# The tables ----------------------------------------------------------------------------------


def peers_table(
    cells: Mapping[Peer, Sequence[Cell]], missing: Mapping[Peer, str], memory: Mapping[Peer, float]
) -> str:
    """A row a peer, means over its rounds; who could not run says why.

    With three rounds and more their 95 % intervals; with any, what the same requests took through
    the first peer. Short prompts are those below cell.SHORT_TOKENS.
    """
    lines = [head(*_HEADS)]
    first = next(iter(cells.values()), ())
    lines += [row(*_cells(peer, runs, first, memory)) for peer, runs in cells.items() if runs]
    lines += [row(peer.label, f"did not run: {reason}") for peer, reason in missing.items()]
    notes = {
        f"Saturated: {peer.label}, {text}."
        for peer, runs in cells.items()
        for text in dict.fromkeys(text for cell in runs for text in cell.saturated)
    }
    return "\n".join([*lines, *([""] if notes else []), *sorted(notes)])


def _cells(
    peer: Peer, runs: Sequence[Cell], first: Sequence[Cell], memory: Mapping[Peer, float]
) -> list[str]:
    shares = [fmean(of(cell.shares) for cell in runs) for of in (min, max)]
    return [
        peer.label,
        _ratios(runs, first),
        *_short(runs),
        *(_mean(runs, key, unit, digits) for key, _, unit, digits in _SHOWN),
        f"{100 * shares[0]:.0f} to {100 * shares[1]:.0f}",
        f"{fmean(cell.cpu_ms_per_request for cell in runs):.2f}",
        f"{100 * fmean(cell.core_shares['peer'] for cell in runs):.0f}",
        f"{memory[peer]:.0f}" if peer in memory else "-",
        str(sum(cell.requests for cell in runs)),
        _faults(runs),
    ]


def _ratios(runs: Sequence[Cell], first: Sequence[Cell]) -> str:
    """Mean TTFT over that of the first peer, round by round: least to most."""
    pairs = zip(runs, first, strict=False)  # a peer that died has fewer rounds
    ratios = [
        mine.figures["ttft_mean_s"] / base.figures["ttft_mean_s"]
        for mine, base in pairs
        if mine.figures and base.figures
    ]
    if not ratios:
        return "-"
    least, most = min(ratios), max(ratios)
    return f"{least:.2f}" if len(ratios) == 1 else f"{least:.2f} to {most:.2f}"


def _short(runs: Sequence[Cell]) -> tuple[str, str]:
    """Mean and p99 TTFT of short prompts, all rounds pooled."""
    pooled = [ttft_s for cell in runs for ttft_s in cell.short_ttft_s]
    if not pooled:
        return "-", "-"
    return f"{1e3 * fmean(pooled):.0f}", f"{1e3 * quantile(pooled, 0.99):.0f}"


def _mean(runs: Sequence[Cell], key: str, unit: float, digits: int) -> str:
    values = [cell.figures[key] * unit for cell in runs if key in cell.figures]
    if not values:
        return "-"
    interval = f" ± {half_width(values):.{digits}f}" if len(values) > 2 else ""
    return f"{fmean(values):.{digits}f}{interval}"


def _faults(runs: Sequence[Cell]) -> str:
    counts = sum((Counter(cell.faults) for cell in runs), Counter[str]())
    return ", ".join(f"{number} x {fault}" for fault, number in counts.items()) or "0"
