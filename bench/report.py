"""What benchmarks compute, print and save: cells, tables in Markdown, progress, failures."""

import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import orjson

C = TypeVar("C")
R = TypeVar("R")


class BenchError(Exception):
    """A benchmark cannot go on; the text says why."""


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def head(*titles: str) -> str:
    """The head of a table: its first column has words, the others have figures."""
    return f"{row(*titles)}\n|---|{'---:|' * (len(titles) - 1)}"


def short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.3g}"


def say(text: str) -> None:
    """Tell how far a run is, beside its output."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def computed(
    work: Callable[[C], R], cells: Sequence[C], jobs: int, name: Callable[[C], str]
) -> dict[C, R]:
    """What each cell gives, `jobs` at once; each is told of when it is there."""
    found: dict[C, R] = {}
    with ProcessPoolExecutor(jobs) as pool:
        for cell, result in zip(cells, pool.map(work, cells), strict=True):
            say(name(cell))
            found[cell] = result
    return found


def machine(sharing: str) -> str:
    """The date, and what a run ran on."""
    today = datetime.now(UTC).date().isoformat()
    python = platform.python_version()
    return f"{today}, {os.cpu_count()} cores shared by {sharing}, CPython {python}"


def verdict(failures: Sequence[str]) -> int:
    """Print what failed; the exit status."""
    for failure in failures:
        print(f"\nFailed: {failure}")
    return 1 if failures else 0


def save(path: Path | None, content: Any) -> None:
    """Write a run's figures as JSON where that was asked for."""
    if path is not None:
        path.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
