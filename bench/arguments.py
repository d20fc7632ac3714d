"""What benchmarks take on their command lines: options of one shape, and kinds of values."""

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Collection
from math import inf
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def option(parser: ArgumentParser, name: str, kind: Any, default: Any, text: str) -> None:
    """An option. `name`: `--flag METAVAR`; `kind`: a function, a choice of names, or bool.

    Its default stands in the help, unless there is none.
    """
    flag, _, metavar = name.partition(" ")
    if default not in (None, ""):
        text = f"{text} (default {default})".lstrip()
    text = text.replace("%", "%%")
    if kind is bool:
        parser.add_argument(flag, action="store_true", help=text)
        return
    how = {"type": kind, "metavar": metavar or None} if callable(kind) else {"choices": kind}
    parser.add_argument(flag, default=default, help=text, **how)


def options_of_runs(parser: ArgumentParser, seeds: int) -> None:
    """How many runs of each cell, how many at once, and where their figures go."""
    option(parser, "--seeds K", count, seeds, "runs of each cell")
    options_of_jobs(parser)


def options_of_jobs(parser: ArgumentParser) -> None:
    """The same, where a run has another name."""
    option(parser, "--jobs J", count, 2, "at once")
    option(parser, "--json OUT", Path, None, "write all cells")


def count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError("a whole number above 0")
    return int(text)


def share(text: str) -> float:
    return _within(text, 0.0, 1.0, "a number from 0 to 1")


def nonnegative(text: str) -> float:
    return _within(text, 0.0, inf, "a number, at least 0")


def positive(text: str) -> float:
    return _within(text, 0.0, inf, "a number above 0", above=True)


def _within(text: str, least: float, most: float, told: str, *, above: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -inf
    if not least <= value <= most or value == inf or (above and value == least):
        raise ArgumentTypeError(told)
    return value


def listed(kind: Callable[[str], T]) -> Callable[[str], list[T]]:
    """A list of this kind, with commas between."""
    return lambda text: [kind(each) for each in text.split(",")]


def names(what: str, known: Collection[str]) -> Callable[[str], list[str]]:
    """A list of names that must be known, with commas between."""

    def name(text: str) -> str:
        if text not in known:
            raise ArgumentTypeError(f"no {what} {text!r}; there are {', '.join(known)}")
        return text

    return listed(name)
