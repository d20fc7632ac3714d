"""`penstock bench overload --panel`: what admission costs where it should do nothing, and what it
gives where it should, beside what both were before.

That is a file with an object for each cell and rule, one a line: of how many seeds, and each
figure's mean and half of its 95 % interval over them.
"""

import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import orjson

from penstock.bench.overload.scenes import ORDINARY, PRESSED, Scene
from penstock.bench.report import BenchError, computed, head, row, save, short
from penstock.bench.routing.outcome import half_width

FILE: Final = Path(__file__).parents[1] / "history" / "overload.json"
DIGITS: Final = 4
Rows = dict[tuple[str, str], "Row"]  # by cell and rule
HALVES: Final = {"ordinary": ORDINARY, "pressed": PRESSED, "both": (*ORDINARY, *PRESSED)}
SCENES: Final = {scene.name: scene for scene in HALVES["both"]}
OF_ORDINARY: Final = (
    ("ttft_mean_s", "TTFT mean s"),
    ("ttft_p99_s", "p99 s"),
    ("e2e_mean_s", "E2E mean s"),
    ("tokens_per_s", "tokens/s"),
    ("refused", "refused"),
    ("preemptions", "preemptions"),
    ("idle", "idle while waiting"),
)
OF_SOME: Final = OF_ORDINARY[:2]
OF_PRESSED: Final = (
    ("good_per_s", "good/s"),
    ("goodput", "goodput"),
    ("answered", "answered"),
    ("tokens_per_s", "tokens/s"),
    ("refused", "refused"),
    ("high_ttft_p99_s", "high: TTFT p99 s"),
    ("high_goodput", "good"),
    ("victim_ttft_p99_s", "victim: TTFT p99 s"),
    ("alone_ttft_p99_s", "alone"),
    ("victim_goodput", "good"),
    ("victim_refused", "refused"),
)
Run = tuple[str, str, int]  # cell, rule, seed


@dataclass(frozen=True, slots=True)
class Row:
    """`seeds`: how many. `figures`: the mean of each, and half of its interval."""

    seeds: int
    figures: Mapping[str, tuple[float, float]]

    @classmethod
    def of(cls, runs: Sequence[Mapping[str, float]]) -> "Row":
        """A figure that only some of the runs have is the mean of those."""
        found: dict[str, list[float]] = {}
        for run in runs:
            for name, value in run.items():
                found.setdefault(name, []).append(value)
        figures = {name: (fmean(each), half_width(each)) for name, each in found.items()}
        return cls(len(runs), figures)

    def is_noise(self, name: str, value: float, seeds: int) -> bool:
        """Whether the mean of so many runs may differ as much by chance. One seed tells nothing."""
        if self.seeds < 2 or name not in self.figures:
            return True
        mean, half = self.figures[name]
        near = 10.0**-DIGITS * max(1.0, abs(mean))  # as far as the file tells
        return bool(abs(value - mean) <= half * (1.0 + self.seeds / seeds) ** 0.5 + near)


def read(path: Path) -> Rows:
    """Empty where there is no such file."""
    if not path.exists():
        return {}
    cells: dict[str, dict[str, dict[str, Any]]] = orjson.loads(path.read_bytes())
    return {
        (cell, rule): Row(found.pop("seeds"), {name: (*each,) for name, each in found.items()})
        for cell, rules in cells.items()
        for rule, found in rules.items()
    }


def write(path: Path, rows: Rows) -> None:
    """What was in the file of other cells and rules stays."""
    cells: dict[str, list[str]] = {}
    for (cell, rule), each_row in (read(path) | rows).items():
        figures = {
            name: [float(f"{each:.{DIGITS}g}") for each in pair]
            for name, pair in each_row.figures.items()
        }
        told = orjson.dumps({"seeds": each_row.seeds} | figures).decode()
        cells.setdefault(cell, []).append(f'  "{rule}": {told}')
    parts = [f'"{cell}": {{\n' + ",\n".join(rules) + "\n}" for cell, rules in cells.items()]
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def run(options: Namespace) -> int:
    """Print a table for each half. Returns the exit status."""
    names = [each.name for each in HALVES[options.panel]]
    names = [name for name in names if options.cells is None or name in options.cells]
    seeds = range(1, options.seeds + 1)
    runs = list(product(names, options.rules, seeds))
    made = computed(_told, runs, options.jobs, lambda each: "{} {} seed {}".format(*each))
    found = {each: figures for each, figures in made.items() if figures is not None}
    rows = {
        (cell, rule): Row.of([found[cell, rule, seed] for seed in seeds])
        for cell, rule in product(names, options.rules)
        if (cell, rule, 1) in found
    }
    before = read(options.baseline)
    _table("ordinary", OF_ORDINARY, [s for s in ORDINARY if s.name in names], rows, before)
    _of_some(rows, before)
    _table("pressed", OF_PRESSED, [s for s in PRESSED if s.name in names], rows, before)
    if options.write_baseline:
        write(options.baseline, rows)
    told = [
        {"cell": cell, "rule": rule, "seed": seed, **figures}
        for (cell, rule, seed), figures in found.items()
    ]
    save(options.json, {"cells": told})
    return 0


def _told(each: Run) -> Mapping[str, float] | None:
    """None: it cannot be computed here."""
    cell, rule, seed = each
    try:
        return SCENES[cell].figures(rule, seed)
    except BenchError as error:
        print(f"left out: {cell}: {error}", file=sys.stderr)
        return None


def _table(
    half: str,
    columns: Iterable[tuple[str, str]],
    scenes: Iterable[Scene],
    rows: Rows,
    before: Rows,
) -> None:
    lines = [
        row(
            f"{cell} {rule}",
            *[_beside(name, each, before.get((cell, rule))) for name, _ in columns],
        )
        for scene in scenes
        for (cell, rule), each in rows.items()
        if cell == scene.name
    ]
    if lines:
        print(f"\n{half}\n\n{head('cell, rule', *[title for _, title in columns])}")
        print("\n".join(lines))


def _of_some(rows: Rows, before: Rows) -> None:
    """The figures of one class or one tenant."""
    lines = []
    for (cell, rule), each in rows.items():
        there = before.get((cell, rule))
        for group in dict.fromkeys(name.split(": ")[0] for name in each.figures if ": " in name):
            told = [_beside(f"{group}: {name}", each, there) for name, _ in OF_SOME]
            lines.append(row(f"{cell} {rule}: {group}", *told))
    if lines:
        print(f"\n{head('cell, rule, of whom', *[title for _, title in OF_SOME])}")
        print("\n".join(lines))


def _beside(name: str, found: Row, before: Row | None) -> str:
    """A figure, and in brackets what it was. Bold if the difference is more than noise."""
    if name not in found.figures:
        return ""
    value = found.figures[name][0]
    if before is None or name not in before.figures:
        return short(value)
    told = f"{short(value)} ({short(before.figures[name][0])})"
    return told if before.is_noise(name, value, found.seeds) else f"**{told}**"
