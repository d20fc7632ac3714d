"""The kinds of arguments that benchmarks take, for argparse."""

from argparse import ArgumentTypeError
from collections.abc import Callable, Collection
from math import inf
from typing import TypeVar

T = TypeVar("T")


def count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError("a whole number above 0")
    return int(text)


def share(text: str) -> float:
    value = _finite(text)
    if value is None or not 0 <= value <= 1:
        raise ArgumentTypeError("a number from 0 to 1")
    return value


def nonnegative(text: str) -> float:
    """A finite number of at least 0."""
    value = _finite(text)
    if value is None or value < 0:
        raise ArgumentTypeError("a number, at least 0")
    return value


def positive(text: str) -> float:
    """A finite number above 0."""
    value = _finite(text)
    if value is None or value <= 0:
        raise ArgumentTypeError("a number above 0")
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


def _finite(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if -inf < value < inf else None
