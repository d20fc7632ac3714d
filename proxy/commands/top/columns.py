"""The columns of a table: which of them a width has room for, and how wide each one is.

A figure's column keeps its width, so that nothing moves when a figure changes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock.proxy.commands.plain_text import cells, fit, plain
from penstock.proxy.commands.top.line import Line, Span, Tone

Told = Mapping[str, Any]
GAP: Final = " "
# What the two cells before a row hold: the mark, and a sign of trouble.
SIGNS_WIDE: Final = 2
# Up to this a long text goes before columns that are hardly needed: those of a rank above NEEDED.
TEXT_CELLS: Final = 21
NEEDED: Final = 4


def _no_tone(told: Told) -> Tone:
    return ""


class Column(NamedTuple):
    """`cell`: its text. `value`: what it is sorted by. `wide`: of a text the least width.

    `rank`: the columns with the largest leave first. 0: it stays. `descends`: the largest is first.
    """

    head: str
    cell: Callable[[Told], str]
    wide: int
    value: Callable[[Told], float | str | None] = lambda told: None
    text: bool = False
    rank: int = 0
    tone: Callable[[Told], Tone] = _no_tone
    means: str = ""
    descends: bool = False


Placed = Sequence[tuple[Column, int]]


def placed(columns: Sequence[Column], entries: Sequence[Told], width: int) -> Placed:
    """The columns that fit, each with its width. A long text takes the room of those that are
    hardly needed; the others it shares."""
    wanted = {
        each.head: max((cells(plain(each.cell(entry))) for entry in entries), default=0)
        for each in columns
        if each.text
    }
    usual = {
        each.head: max(each.wide, min(TEXT_CELLS, wanted.get(each.head, 0))) for each in columns
    }
    left, room = [*columns], width - SIGNS_WIDE
    for rank in sorted({each.rank for each in columns if each.rank}, reverse=True):
        spare = rank > NEEDED
        if _sum(left, usual if spare else None) > room:
            left = [each for each in left if each.rank != rank]
    widths = {each.head: each.wide for each in left}
    free = room - _sum(left, None)
    for limit in (TEXT_CELLS, width):
        for column in left:
            if column.text:
                more = min(free, max(0, min(limit, wanted[column.head]) - widths[column.head]))
                widths[column.head] += more
                free -= more
    return [(each, widths[each.head]) for each in left]


def heads(columns: Placed, sorted_by: str | None, *, down: bool) -> Line:
    """The line of heads. That of the sorting column has an arrow."""
    spans = [Span(" " * SIGNS_WIDE, "head")]
    for column, wide in columns:
        name = column.head
        if name == sorted_by:
            name = f"{name}{'v' if down else '^'}"
        spans.append(Span(fit(name, wide, right=not column.text) + GAP, "head"))
    return tuple(spans)


def row(columns: Placed, told: Told, sign: str, *, marked: bool) -> Line:
    """The line of one entry. A marked one has a `>` before it."""
    signs = f"{'>' if marked else ' '}{sign or ' '}"
    spans = [Span(signs, "marked" if marked else "bad" if sign == "!" else "warn" if sign else "")]
    for column, wide in columns:
        text = fit(plain(column.cell(told)), wide, right=not column.text)
        spans.append(Span(text + GAP, "marked" if marked else column.tone(told)))
    return tuple(spans)


def _sum(columns: Sequence[Column], widths: Mapping[str, int] | None) -> int:
    """How wide they are together. Without `widths`: at least."""
    return sum((widths[each.head] if widths else each.wide) + len(GAP) for each in columns)
