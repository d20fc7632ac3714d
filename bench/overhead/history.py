"""A line for each measured commit: what penstock costs, as ratios to peers of the same run.

Each part may cost a few per cent, and they multiply. So a run is compared with the cheapest one
before, and not with the last: what became dearer by more than a bound is told before it lands. Who
accepts a higher cost takes the older lines out of the file.
"""

import csv
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from penstock.bench.overhead.rounds import MEASURED, Results
from penstock.bench.report import BenchError

# What is compared, and with whom. Absolute times say nothing: machines differ by the hour.
METRICS: Final = ("stream", "request", "closed", "prompt_2k", "prompt_220k", "prompt_1m")
PEERS: Final = ("nginx", "aiohttp")
ABOUT: Final = ("date", "commit", "build", "rounds")
COLUMNS: Final = (*ABOUT, *(f"{metric}/{peer}" for metric in METRICS for peer in PEERS))
# A run of five rounds differs from its repetition by up to 7 %, and the cheapest one was lucky.
BOUND: Final = 1.15

Line = Mapping[str, str]


def line_of(results: Results, labels: Sequence[str], about: Mapping[str, str]) -> dict[str, str]:
    """The line of a run. `labels`: of the peers that were measured. Empty where one was not."""
    named = {label.split()[0]: label for label in labels}
    line = {name: about[name] for name in ABOUT}
    for metric in METRICS:
        for peer in PEERS:
            ratio = None
            if MEASURED in named and peer in named:
                ratio = results.ratio(f"{metric}_us", named[MEASURED], named[peer])
            line[f"{metric}/{peer}"] = "" if ratio is None else f"{ratio:.3f}"
    return line


def dearer(line: Line, before: Sequence[Line], bound: float = BOUND) -> list[str]:
    """What costs more than `bound` times what it did in the cheapest line of the same build."""
    same = [each for each in before if each["build"] == line["build"]]
    found = []
    for column in COLUMNS[len(ABOUT) :]:
        known = [float(each[column]) for each in same if each[column]]
        if known and line[column] and float(line[column]) > bound * min(known):
            found.append(f"{column}: {line[column]}, once {min(known):.3f}")
    return found


def read(path: Path) -> list[Line]:
    """The lines of a history; none if there is no file yet. Raises BenchError."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = csv.DictReader(file)
        if tuple(rows.fieldnames or ()) != COLUMNS:
            raise BenchError(f"{path} is no history of this benchmark: it has other columns")
        return list(rows)


def add(path: Path, line: Line) -> None:
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(line)


def commit_at(path: Path) -> str:
    """The commit of the checkout that holds a path, `-` where there is none."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "-"
