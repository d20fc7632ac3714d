"""A line of the picture: texts, each with a tone. A tone is what a text means, not a colour."""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from penstock.proxy.commands.plain_text import cells, cut, wrap

Tone = Literal["", "good", "warn", "bad", "quiet", "head", "marked", "strong"]


class Span(NamedTuple):
    """Some text of a line."""

    text: str
    tone: Tone = ""


Line = tuple[Span, ...]
EMPTY: Line = ()


def text_of(line: Line) -> str:
    """Its text alone."""
    return "".join(span.text for span in line)


def width_of(line: Iterable[Span]) -> int:
    """How many cells it takes."""
    return sum(cells(span.text) for span in line)


def within(line: Sequence[Span], width: int) -> Line:
    """Its spans as far as they fit. The first one that does not is cut."""
    kept: list[Span] = []
    for span in line:
        left = width - width_of(kept)
        if left <= 0:
            break
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
        if part.text:
            longer = [*spans, Span(gap), part] if spans else [part]
            if spans and width_of(longer) > width:
                break
            spans = longer
    return tuple(spans)


def ended(line: Line, end: Span, width: int) -> Line:
    """The line with `end` after it, also if the line must be cut for it."""
    return (*within(line, max(0, width - cells(end.text))), end)
