"""`penstock bench overload`: a fleet at and above its capacity, in virtual time.

Clients wait for 5 s for a first token and retry twice as the OpenAI SDK does; a tenth of the calls
is of the high class. A call is good with a first token within 5 s and 100 ms a token.
"""

import statistics
import sys
from argparse import ArgumentParser, Namespace
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from random import Random
from typing import Final

from penstock.bench.arguments import count, listed, names, positive
from penstock.bench.overload.calls import Clients, poisson
from penstock.bench.overload.mixes import MIXES
from penstock.bench.overload.outcome import figures
from penstock.bench.overload.world import World
from penstock.bench.report import head, row, save

# What happens before is not counted, and after the last call there is time for answers.
WARM_S: Final = 20.0
REST_S: Final = 40.0
SHOWN: Final = (
    ("good_per_s", "good/s"),
    ("tokens_per_s", "tokens/s"),
    ("high_goodput", "high: good"),
    ("high_ttft_p99_s", "TTFT p99 s"),
    ("low_ttft_p50_s", "low: TTFT p50 s"),
    ("low_ttft_p99_s", "p99 s"),
    ("refused", "refused"),
    ("late", "late"),
    ("longest_quarter", "longest quarter"),
    ("preemptions", "preemptions"),
    ("prediction_error", "prediction off"),
)
RULES: Final = ("at_once", "admission")


@dataclass(frozen=True, slots=True)
class Cell:
    """One run. `load`: 1.0 is the capacity of the mix."""

    mix: str
    load: float
    rule: str
    seed: int
    length_s: float

    def figures(self) -> dict[str, float]:
        """Compute it. The same cell gives the same figures."""
        mix = MIXES[self.mix]
        rate = self.load * mix.capacity_per_s
        calls = poisson(mix, lambda _: rate, self.length_s, Random(f"{self.seed}"), Clients())
        world = World(mix, holds=self.rule == "admission", seed=self.seed)
        world.run(calls, self.length_s + REST_S)
        return figures(world, WARM_S, self.length_s)


def run(options: Namespace) -> int:
    """Print a table for each mix. Returns the exit status."""
    seeds = range(1, options.seeds + 1)
    cells = [
        Cell(mix, load, rule, seed, options.length_s)
        for mix, load, rule, seed in product(options.mix, options.load, options.rules, seeds)
    ]
    with ProcessPoolExecutor(options.jobs) as pool:
        found = dict(zip(cells, pool.map(_told, cells), strict=True))
    for mix in options.mix:
        print(f"\n{mix}\n\n{head('load, rule', *[title for _, title in SHOWN])}")
        for load, rule in product(options.load, options.rules):
            runs = [f for c, f in found.items() if (c.mix, c.load, c.rule) == (mix, load, rule)]
            means = [statistics.fmean(each[key] for each in runs) for key, _ in SHOWN]
            print(row(f"{load:g} {rule}", *[_short(mean) for mean in means]))
    save(options.json, {"cells": [asdict(cell) | found[cell] for cell in cells]})
    return 0


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.3g}"


def _told(cell: Cell) -> dict[str, float]:
    result = cell.figures()
    print(f"{cell.mix} {cell.load:g} {cell.rule} seed {cell.seed}", file=sys.stderr)
    return result


def arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--mix",
        type=names("mix", MIXES),
        default=list(MIXES),
        metavar="NAME,…",
        help=f"{', '.join(MIXES)} (default all)",
    )
    add(
        "--load",
        type=listed(positive),
        default="0.8,1.1,2,5",
        metavar="X,…",
        help="1.0: the fleet's capacity (default 0.8,1.1,2,5)",
    )
    add(
        "--rules",
        type=names("rule", RULES),
        default=list(RULES),
        metavar="NAME,…",
        help=f"{', '.join(RULES)} (default both)",
    )
    add("--length-s", type=positive, default=80.0, metavar="S", help="of a run (default 80)")
    add("--seeds", type=count, default=1, metavar="K", help="runs of each cell (default 1)")
    add("--jobs", type=count, default=2, metavar="J", help="at once (default 2)")
    add("--json", type=Path, metavar="OUT", help="write all cells")
