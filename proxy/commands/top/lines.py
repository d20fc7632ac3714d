"""A line of the picture: texts, each with a tone. A tone is what a text means, not a colour.

And tables of such lines. A figure's column keeps its width, so that nothing moves when it changes.
Figures are as people read them, as short as a column needs. What nobody has told is a dash.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from penstock.proxy.commands.plain_text import cells, cut, fit, plain, wrap

NONE: Final = "-"
_SIZES: Final = ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))


def count(value: float | None) -> str:
    """950, 12.3k, 4.1M."""
    if value is None:
        return NONE
    for least, size, unit in _SIZES:
        if value >= least:
            return f"{value / size:.{int(value < 100.0 * size)}f}{unit}"
    return f"{value:.1f}" if value < 10 and value % 1 else f"{value:,.0f}"


def percent(share: float | None) -> str:
    """61%."""
    return NONE if share is None else f"{share:.0%}"


def seconds(value: float | None, units: float = 1.0) -> str:
    """42ms, 0.31s, 3.1min. `units`: how many of the value's are a second."""
    if value is None:
        return NONE
    value /= units
    if value < 0.0995:
        return f"{1e3 * value:.0f}ms"
    if value < 120.0:
        return f"{value:.{1 + (value < 10.0)}f}s"
    return f"{value / 60.0:.1f}min"


def times(value: float | None) -> str:
    """3.4x."""
    return NONE if value is None else f"{value:.1f}x"


def price(value: float) -> str:
    """Two digits that matter."""
    return f"{value:.0f}" if value >= 100.0 else f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def clock(unix_s: float) -> str:
    """The time of day, by the clock of whoever looks."""
    return datetime.fromtimestamp(unix_s).astimezone().strftime("%H:%M:%S")


def many(number: int, word: str) -> str:
    """1 request, 2 requests."""
    return f"{number:,} {word}{'s' * (number != 1)}"


Told = Mapping[str, Any]
Tone = Literal["", "good", "warn", "bad", "quiet", "head", "marked", "strong"]
# The two cells before a row hold the mark, and a sign of trouble.
SIGNS_WIDE: Final = 2
# Up to this a long text goes before columns that are hardly needed: those of a rank above NEEDED.
TEXT_CELLS: Final = 21
NEEDED: Final = 4


class Span(NamedTuple):
    """Some text of a line."""

    text: str
    tone: Tone = ""


Line = tuple[Span, ...]
EMPTY: Final[Line] = ()


def text_of(line: Line) -> str:
    return "".join(span.text for span in line)


def width_of(line: Iterable[Span]) -> int:
    """How many cells it takes."""
    return sum(cells(span.text) for span in line)


def within(line: Sequence[Span], width: int) -> Line:
    """Its spans as far as they fit. The first one that does not is cut."""
    kept: list[Span] = []
    for span in line:
        left = width - width_of(kept)
        if left > 0:
            kept.append(Span(cut(span.text, left), span.tone))
    return tuple(kept)


def wrapped(text: str, tone: Tone, width: int, lines_max: int, indent: str = "") -> list[Line]:
    """A text in several lines. All but the first begin with `indent`."""
    lines = wrap(text, width - len(indent), lines_max)
    return [(Span(f"{indent if number else ''}{each}", tone),) for number, each in enumerate(lines)]


def joined(parts: Iterable[Span], gap: str, width: int) -> Line:
    """Those that have a text, with a gap between them. What has no room is left out, from the
    end."""
    spans: list[Span] = []
    for part in parts:
        longer = [*spans, Span(gap), part] if spans else [part]
        if part.text and spans and width_of(longer) > width:
            break
        spans = longer if part.text else spans
    return tuple(spans)


class Column(NamedTuple):
    """`wide`: of a text the least width. `rank`: the columns with the largest leave first. 0: it
    stays. `value`: what it is sorted by. `show`: its text, of the
    value; `cell_of`: of the whole entry instead."""

    head: str
    wide: int
    rank: int
    value: Callable[[Told], Any]
    show: Callable[[Any], str] = str
    means: str = ""
    tone: Callable[[Told], Tone] = lambda told: ""
    text: bool = False
    cell_of: Callable[[Told], str] | None = None

    def cell(self, told: Told) -> str:
        return self.show(self.value(told)) if self.cell_of is None else self.cell_of(told)

    @property
    def is_figure(self) -> bool:
        """Whether it is sorted from the largest on."""
        return not self.text or self.cell_of is not None


Placed = Sequence[tuple[Column, int]]


def placed(columns: Sequence[Column], entries: Sequence[Told], width: int) -> Placed:
    """The columns that fit, each with its width. A long text takes the room of those that are
    hardly needed; the others it shares."""
    wanted = {
        each: max((cells(plain(each.cell(entry))) for entry in entries if each.text), default=0)
        for each in columns
    }
    left, room = [*columns], width - SIGNS_WIDE
    for rank in sorted({each.rank for each in columns} - {0}, reverse=True):
        most = TEXT_CELLS if rank > NEEDED else 0
        if sum(1 + max(each.wide, min(most, wanted[each])) for each in left) > room:
            left = [each for each in left if each.rank != rank]
    widths = {each: each.wide for each in left}
    free = room - sum(1 + each.wide for each in left)
    for limit in (TEXT_CELLS, width):
        for each in left:
            more = min(free, max(0, min(limit, wanted[each]) - widths[each]))
            widths[each] += more
            free -= more
    return list(widths.items())


def heads(columns: Placed, sorted_by: str | None, *, down: bool) -> Line:
    """The line of heads. That of the sorting column has an arrow."""
    arrow = "v" if down else "^"
    names = [f"{each.head}{arrow if each.head == sorted_by else ''}" for each, _ in columns]
    texts = [
        fit(name, wide, right=not column.text) + " "
        for name, (column, wide) in zip(names, columns, strict=True)
    ]
    return (Span(" " * SIGNS_WIDE, "head"), *[Span(text, "head") for text in texts])


def row(columns: Placed, told: Told, sign: str, *, marked: bool) -> Line:
    """The line of one entry. A marked one has a `>` before it."""
    tone: Tone = "bad" if sign == "!" else "warn" if sign else ""
    spans = [Span(f"{'>' if marked else ' '}{sign or ' '}", "marked" if marked else tone)]
    for column, wide in columns:
        text = fit(plain(column.cell(told)), wide, right=not column.text)
        spans.append(Span(f"{text} ", "marked" if marked else column.tone(told)))
    return tuple(spans)
