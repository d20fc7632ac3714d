"""What the panel's figures were, and how much of a difference is noise.

A file with an object for each cell and rule, one a line: of how many seeds, and each figure's mean
and half of its 95 % interval over them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import orjson

from penstock.bench.routing.interval import half_width

FILE: Final = Path(__file__).parents[1] / "history" / "overload.json"
DIGITS: Final = 4
Rows = dict[tuple[str, str], "Row"]  # by cell and rule


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
    for (cell, rule), row in (read(path) | rows).items():
        figures = {name: [_short(each) for each in pair] for name, pair in row.figures.items()}
        told = orjson.dumps({"seeds": row.seeds} | figures).decode()
        cells.setdefault(cell, []).append(f'  "{rule}": {told}')
    parts = [f'"{cell}": {{\n' + ",\n".join(rules) + "\n}" for cell, rules in cells.items()]
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
