"""`penstock bench routing`: policies on simulated engines in virtual time, one table a workload.

Figures are means over the seeds with the half-width of their 95 % interval (Student's t).
"""

import statistics
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any, Final

from penstock.balancing.policies import POLICIES
from penstock.bench.arguments import (
    count,
    listed,
    nonnegative,
    option,
    options_of_runs,
    positive,
    share,
)
from penstock.bench.report import BenchError, computed, head, row, save
from penstock.bench.routing.cell import Cell, compute, policy_name, workload
from penstock.bench.routing.experiment import ESTIMATE_SIGMA, Adversity
from penstock.bench.routing.generators import GENERATORS
from penstock.bench.routing.outcome import half_width
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
# The rows of the figure, and the size of each panel.
DRAWN: Final = (("ttft_mean_s", "mean TTFT, s"), ("goodput", "goodput"))
PANEL_INCHES: Final = (4.2, 3.0)


def run(options: Namespace) -> int:
    """Print the tables; returns the exit status. Raises BenchError."""
    cells = list(_cells(options))
    found = computed(compute, cells, options.jobs, _told)
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


def _told(cell: Cell) -> str:
    return f"{_name(cell.trace)} {cell.policy} {cell.load:g} seed {cell.seed}"


def _cells(options: Namespace) -> Iterator[Cell]:
    o = options
    adversity = Adversity(
        *(o.slow, o.hidden, o.estimates_off, o.rates_wrong, o.outage),
        *(o.out, o.plain, o.untold),
    )
    rest = o.routers, o.backends, o.profile, o.window_s, o.noise, o.api_ms / 1e3, o.share_s
    for trace, load, seed, policy in product(o.trace, o.load, range(1, o.seeds + 1), o.policies):
        yield Cell(trace, policy, load, seed, *rest, adversity, o.admission)


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
    made_up = ", ".join(GENERATORS)
    traces = f"trace files, or {made_up}"
    parser.add_argument("--trace", nargs="+", type=workload, required=True, help=traces)
    rules = "round_robin,least_requests,least_tokens,session,token_cost"
    load = "1.0 fills the engines: see bench/routing/trace.py"
    shares = "how often each proxy tells the others its load; 0: never"
    estimates = "error of prompts' estimated tokens"
    for name, kind, default, text in (
        ("--policies A,…", listed(policy_name), rules, ""),
        ("--backends N", count, 8, "engines"),
        ("--profile", GPUS, "70b-4xh100", "model and GPUs of each"),
        ("--load X,…", listed(positive), "0.8", load),
        ("--routers R", count, 1, "proxies before the engines"),
        ("--share-s S", nonnegative, 0.0, shares),
        ("--window-s S", _seconds, 360.0, "of the trace"),
        ("--noise X", nonnegative, 0.0, "of a step's time"),
        ("--api-ms MS", nonnegative, 0.0, "API server, a request"),
        ("--slow N", _whole, 0, "engines at half speed"),
        ("--hidden X", share, 0.0, "share of requests sent past us"),
        ("--estimates-off X", nonnegative, ESTIMATE_SIGMA, estimates),
        ("--rates-wrong X", share, 0.0, "error of learnt speeds"),
        ("--outage", bool, None, "one backend joins, one dies and comes back"),
        ("--out N", _whole, 0, "backends that die at once"),
        ("--plain X", share, 0.0, "share of answers not streamed"),
        ("--untold", bool, None, "answers do not tell cached tokens; metrics do"),
        ("--admission", bool, None, "requests wait before busy engines"),
        ("--figure OUT", Path, None, "draw them; .svg, .png or .pdf"),
    ):
        option(parser, name, kind, default, text)
    options_of_runs(parser, 3)


def _whole(text: str) -> int:
    return 0 if text == "0" else count(text)


def _seconds(text: str) -> float:
    """Shorter windows may hold no request at all."""
    seconds = positive(text)
    if seconds < WINDOW_S_MIN:
        raise ArgumentTypeError(f"at least {WINDOW_S_MIN:g} s")
    return seconds


def draw(found: Mapping[Cell, Mapping[str, float]], titles: Mapping[str, str], path: Path) -> None:
    """Write the figure; the kind of file is in its name. Raises BenchError, OSError.

    `titles` are the workloads' names, by what cells call them.
    """
    try:
        from matplotlib import rcParams
        from matplotlib.figure import Figure
    except ImportError:
        raise BenchError("matplotlib is missing: pip install matplotlib") from None
    width, height = PANEL_INCHES
    figure = Figure(figsize=(width * len(titles), height * len(DRAWN)), layout="constrained")
    panels = figure.subplots(len(DRAWN), len(titles), squeeze=False, sharex=True)
    for column, (trace, title) in enumerate(titles.items()):
        for number, (key, label) in enumerate(DRAWN):
            panel = panels[number][column]
            for policy in dict.fromkeys(cell.policy for cell in found):
                mine = {c: f for c, f in found.items() if (c.trace, c.policy) == (trace, policy)}
                _line(panel, mine, key, policy)
            panel.set_ylabel(label)
            panel.grid(alpha=0.3)
        panels[0][column].set_title(title)
        panels[0][column].set_yscale("log")
        panels[-1][column].set_xlabel("load")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6)
    # Without a date and with the same names, so that the same figures make the same file.
    rcParams["svg.hashsalt"] = "penstock"
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _line(panel: Any, found: Mapping[Cell, Mapping[str, float]], key: str, policy: str) -> None:
    """One policy: means over the seeds with their 95 % intervals."""
    loads = sorted({cell.load for cell in found})
    runs: list[Sequence[float]] = [
        [figures[key] for cell, figures in found.items() if cell.load == load] for load in loads
    ]
    means = [statistics.fmean(values) for values in runs]
    ours = policy in POLICIES
    panel.errorbar(
        loads,
        means,
        yerr=[half_width(values) for values in runs],
        label=policy,
        marker="o",
        markersize=3,
        linewidth=2.0 if ours else 1.0,
        linestyle="-" if ours else "--",
        capsize=2,
    )
