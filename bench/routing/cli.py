"""`penstock bench routing`: policies on simulated engines in virtual time, one table a workload.

Figures are means over the seeds with the half-width of their 95 % interval (Student's t).
"""

import statistics
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Final

from penstock.bench.arguments import count, listed, nonnegative, positive, share
from penstock.bench.report import head, row, save
from penstock.bench.routing.adversity import ESTIMATE_SIGMA, Adversity
from penstock.bench.routing.cell import Cell, compute, policy_name, workload
from penstock.bench.routing.figure import draw
from penstock.bench.routing.generators import GENERATORS
from penstock.bench.routing.interval import half_width
from penstock.bench.sim.profiles import GPUS

SHOWN: Final = (
    ("ttft_mean_s", "TTFT mean s", 1.0),
    ("ttft_p99_s", "p99", 1.0),
    ("itl_p99_s", "ITL p99 ms", 1e3),
    ("e2e_mean_s", "E2E mean s", 1.0),
    ("goodput", "goodput", 1.0),
    ("hit_rate", "hits", 1.0),
    ("imbalance", "imbalance", 1.0),
)
# What the others are measured by, where it is among them.
ORACLE: Final = "oracle"
WINDOW_S_MIN: Final = 10.0


def run(options: Namespace) -> int:
    """Print the tables; returns the exit status. Raises BenchError."""
    cells = list(_cells(options))
    with ProcessPoolExecutor(options.jobs) as pool:
        found = dict(zip(cells, pool.map(_told, cells), strict=True))
    for trace, load in product(options.trace, options.load):
        mine = {c: f for c, f in found.items() if (c.trace, c.load) == (trace, load)}
        mixed = str(next(iter(mine)).adversity)
        print(
            f"\n{_name(trace)}, load {load:g}, {options.backends} x {options.profile}"
            f"{', ' * bool(mixed)}{mixed}\n"
        )
        _table(mine, options.policies)
    rows = [asdict(c) | {"trace": _name(c.trace)} | f for c, f in found.items()]
    save(options.json, {"cells": rows})
    if options.figure is not None:
        draw(found, {trace: _name(trace) for trace in options.trace}, options.figure)
    return 0


def _told(cell: Cell) -> dict[str, float]:
    figures = compute(cell)
    print(f"{_name(cell.trace)} {cell.policy} {cell.load:g} seed {cell.seed}", file=sys.stderr)
    return figures


def _cells(options: Namespace) -> Iterator[Cell]:
    seeds = range(1, options.seeds + 1)
    for trace, load, seed, policy in product(options.trace, options.load, seeds, options.policies):
        yield Cell(
            trace,
            policy,
            load,
            seed,
            options.routers,
            options.backends,
            options.profile,
            options.window_s,
            options.noise,
            options.api_ms / 1e3,
            options.share_s,
            Adversity(
                options.slow,
                options.hidden,
                options.estimates_off,
                options.rates_wrong,
                options.outage,
                options.out,
                options.plain,
                options.untold,
            ),
            options.admission,
        )


def _table(found: dict[Cell, dict[str, float]], policies: Sequence[str]) -> None:
    titles = [title for _, title, _ in SHOWN]
    oracle = {cell.seed: each for cell, each in found.items() if cell.policy == ORACLE}
    if oracle:
        titles.append("E2E x oracle")
    print(head("policy", *titles))
    for policy in policies:
        runs = {cell.seed: figures for cell, figures in found.items() if cell.policy == policy}
        shown = [_interval([run[key] * unit for run in runs.values()]) for key, _, unit in SHOWN]
        if oracle:
            e2e = "e2e_mean_s"
            shown.append(_interval([run[e2e] / oracle[seed][e2e] for seed, run in runs.items()]))
        print(row(policy, *shown))


def _interval(values: Sequence[float]) -> str:
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:.3g}"
    return f"{mean:.3g} ± {half_width(values):.2g}"


def _name(trace: str) -> str:
    return trace if trace in GENERATORS else Path(trace).name.partition(".")[0]


def arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    made_up = ", ".join(GENERATORS)
    add("--trace", nargs="+", type=workload, required=True, help=f"trace files, or {made_up}")
    add(
        "--policies",
        type=listed(policy_name),
        default="round_robin,least_requests,least_tokens,session,token_cost",
    )
    add("--backends", type=count, default=8, metavar="N", help="engines (default 8)")
    add("--profile", choices=GPUS, default="70b-4xh100", help="model and GPUs of each")
    add(
        "--load",
        type=listed(positive),
        default="0.8",
        metavar="X,…",
        help="1.0: see bench/routing/load.py",
    )
    add("--routers", type=count, default=1, metavar="R", help="proxies before the engines")
    add(
        "--share-s",
        type=nonnegative,
        default=0.0,
        metavar="S",
        help="how often each proxy tells the others its load (default never)",
    )
    add("--window-s", type=_seconds, default=360.0, help="of the trace (default 360)")
    add("--noise", type=nonnegative, default=0.0, metavar="X", help="of a step's time (default 0)")
    add(
        "--api-ms",
        type=nonnegative,
        default=0.0,
        metavar="MS",
        help="API server, a request (default 0)",
    )
    add("--slow", type=_whole, default=0, metavar="N", help="engines at half speed (default 0)")
    add("--hidden", type=share, default=0.0, metavar="X", help="share of requests sent past us")
    add(
        "--estimates-off",
        type=nonnegative,
        default=ESTIMATE_SIGMA,
        metavar="X",
        help=f"error of prompts' estimated tokens (default {ESTIMATE_SIGMA})",
    )
    add("--rates-wrong", type=share, default=0.0, metavar="X", help="error of learnt speeds")
    add("--outage", action="store_true", help="one backend joins, one dies and comes back")
    add("--out", type=_whole, default=0, metavar="N", help="backends that die at once (default 0)")
    add("--plain", type=share, default=0.0, metavar="X", help="share of answers not streamed")
    add("--untold", action="store_true", help="answers do not tell cached tokens; metrics do")
    add("--admission", action="store_true", help="requests wait before busy engines")
    add("--seeds", type=count, default=3, metavar="K", help="runs of each cell (default 3)")
    add("--jobs", type=count, default=2, metavar="J", help="at once (default 2)")
    add("--json", type=Path, metavar="OUT", help="write all cells")
    add("--figure", type=Path, metavar="OUT", help="draw them; .svg, .png or .pdf")


def _whole(text: str) -> int:
    return 0 if text == "0" else count(text)


def _seconds(text: str) -> float:
    """Shorter windows may hold no request at all."""
    seconds = positive(text)
    if seconds < WINDOW_S_MIN:
        raise ArgumentTypeError(f"at least {WINDOW_S_MIN:g} s")
    return seconds
