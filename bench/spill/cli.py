"""`penstock bench spill`: long prompts in one fleet, in a pool of their own, and with spilling.

A share of the requests has prompts of 100,000 tokens. A call is good with a first token within
5 s (30 s for a long prompt) and 100 ms a token.
"""

import statistics
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from random import Random
from typing import Final

from penstock.bench.arguments import count, listed, option, options_of_runs, positive, share
from penstock.bench.report import computed, head, row, save
from penstock.bench.routing.trace import speedup
from penstock.bench.sim.profiles import GPUS
from penstock.bench.spill.http import play
from penstock.bench.spill.world import RULES, Spill, arrivals

# Rates are found for a load, so the first guess does not matter.
GUESS_PER_S: Final = 5.0
SHOWN: Final = (
    ("chat_p50_s", "interactive: TTFT p50 s"),
    ("chat_p99_s", "p99 s"),
    ("of_one", "x one fleet"),
    ("long_p50_s", "long: TTFT p50 s"),
    ("long_p99_s", "p99 s"),
    ("goodput", "good"),
    ("chat_goodput", "interactive"),
    ("long_goodput", "long"),
    ("spilled", "spilled"),
    ("lost", "without a first token"),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One run. `load`: 1.0 fills the engines (`bench/routing/trace.py`)."""

    load: float
    long_engines: int
    rule: str
    seed: int
    share: float
    backends: int
    profile: str
    length_s: float
    admission: bool
    http: bool = False

    def figures(self) -> dict[str, float]:
        """Compute it: the same requests for all rules."""
        profile = GPUS[self.profile]
        coming = arrivals(self.share, GUESS_PER_S, self.length_s, Random(self.seed))
        faster = speedup(coming, profile, self.backends, self.load)
        coming = [each._replace(at_s=each.at_s / faster) for each in coming]
        engines, long_engines, admission = self.backends, self.long_engines, self.admission
        if self.http:
            return play(self.rule, self.profile, coming, engines, long_engines, admission=admission)
        world = Spill(
            self.rule,
            profile,
            backends=engines,
            long_engines=long_engines,
            seed=self.seed,
            admission=admission,
        )
        return world.play(coming)


def run(options: Namespace) -> int:
    """Print a table for each load. Returns the exit status."""
    cells = list(_cells(options))
    jobs = 1 if options.http else options.jobs
    found = computed(Cell.figures, cells, jobs, lambda cell: f"{_name(cell)} seed {cell.seed}")
    for load in options.load:
        given = {"of_one", *found[cells[0]]}
        titles = [title for key, title in SHOWN if key in given]
        print(f"\nload {load:g}, {options.backends} x {options.profile}, share {options.share:g}\n")
        print(head("rule", *titles))
        shown = [cell for cell in cells if cell.load == load and cell.seed == 1]
        one_s = 0.0
        for cell in shown:
            runs = [each for other, each in found.items() if _same(other, cell)]
            means = {key: statistics.fmean([each[key] for each in runs]) for key in runs[0]}
            one_s = means["chat_p99_s"] if cell.rule == "one" else one_s
            means["of_one"] = means["chat_p99_s"] / one_s if one_s else 1.0
            print(row(_name(cell), *[f"{means[key]:.3g}" for key, _ in SHOWN if key in means]))
    save(options.json, {"cells": [asdict(cell) | each for cell, each in found.items()]})
    return 0


def _same(one: Cell, other: Cell) -> bool:
    return (one.load, one.long_engines, one.rule) == (other.load, other.long_engines, other.rule)


def _name(cell: Cell) -> str:
    if cell.rule == "one":
        return "one fleet"
    return f"{cell.rule}, {cell.long_engines} + {cell.backends - cell.long_engines}"


def _cells(options: Namespace) -> Iterator[Cell]:
    """One fleet once, the other rules for each way to divide it."""
    rest = options.share, options.backends, options.profile, options.length_s
    for load in options.load:
        ways = [("one", 0), *product(RULES[1:], options.long_engines)]
        ways.sort(key=lambda way: way[1])
        for (rule, engines), seed in product(ways, range(1, options.seeds + 1)):
            yield Cell(load, engines, rule, seed, *rest, options.admission, options.http)


def arguments(parser: ArgumentParser) -> None:
    for name, kind, default, text in (
        ("--load X,…", listed(positive), "0.6,0.8", "1.0: see bench/routing/trace.py"),
        ("--backends N", count, 8, "engines"),
        ("--long-engines N,…", listed(count), "5,6,7", "engines of the pool for long prompts"),
        ("--profile", GPUS, "8b-1xh100", "model and GPUs of each"),
        ("--share X", share, 0.08, "of long prompts"),
        ("--http", bool, None, "in real time, through penstock before simulated servers"),
        ("--admission", bool, None, "requests wait before busy engines"),
        ("--length-s S", positive, 300.0, "of a run"),
    ):
        option(parser, name, kind, default, text)
    options_of_runs(parser, 3)
