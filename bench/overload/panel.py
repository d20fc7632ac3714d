"""`penstock bench overload --panel`: what admission costs where it should do nothing, and what it
gives where it should, beside what both were before (`baseline`)."""

import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from typing import Final

from penstock.bench.overload import baseline
from penstock.bench.overload.baseline import Row, Rows
from penstock.bench.overload.ordinary import ORDINARY
from penstock.bench.overload.pressed import PRESSED
from penstock.bench.overload.scene import Scene
from penstock.bench.report import BenchError, head, row, save

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
    ("high_p99_s", "high: TTFT p99 s"),
    ("high_goodput", "good"),
    ("victim_p99_s", "victim: TTFT p99 s"),
    ("alone_p99_s", "alone"),
    ("victim_goodput", "good"),
    ("victim_refused", "refused"),
)
Run = tuple[str, str, int]  # cell, rule, seed


def run(options: Namespace) -> int:
    """Print a table for each half. Returns the exit status."""
    names = [each.name for each in HALVES[options.panel]]
    names = [name for name in names if options.cells is None or name in options.cells]
    seeds = range(1, options.seeds + 1)
    runs = list(product(names, options.rules, seeds))
    with ProcessPoolExecutor(options.jobs) as pool:
        computed = zip(runs, pool.map(_told, runs), strict=True)
        found = {each: figures for each, figures in computed if figures is not None}
    rows = {
        (cell, rule): Row.of([found[cell, rule, seed] for seed in seeds])
        for cell, rule in product(names, options.rules)
        if (cell, rule, 1) in found
    }
    before = baseline.read(options.baseline)
    _table("ordinary", OF_ORDINARY, [s for s in ORDINARY if s.name in names], rows, before)
    _of_some(rows, before)
    _table("pressed", OF_PRESSED, [s for s in PRESSED if s.name in names], rows, before)
    if options.write_baseline:
        baseline.write(options.baseline, rows)
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
        result = SCENES[cell].figures(rule, seed)
    except BenchError as error:
        print(f"left out: {cell}: {error}", file=sys.stderr)
        return None
    print(f"{cell} {rule} seed {seed}", file=sys.stderr)
    return result


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
        return _short(value)
    told = f"{_short(value)} ({_short(before.figures[name][0])})"
    return told if before.is_noise(name, value, found.seeds) else f"**{told}**"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.3g}"
