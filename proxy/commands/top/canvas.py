"""Shows lines. Of a new picture only what differs from the last one is drawn."""

from collections.abc import Sequence
from typing import Final

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from penstock.proxy.commands.plain_text import cells, plain
from penstock.proxy.commands.top.line import EMPTY, Line, Tone, text_of, width_of

# The terminal's own colours: they fit its background. Each stands beside a sign or a word.
STYLES: Final[dict[Tone, Style]] = {
    "": Style(),
    "good": Style(color="green"),
    "warn": Style(color="yellow"),
    "bad": Style(color="red", bold=True),
    "quiet": Style(color="bright_black"),
    "head": Style(bold=True, underline=True),
    "marked": Style(reverse=True),
    "strong": Style(bold=True),
}


class Canvas(Widget):
    """As many lines as it has rows."""

    lines: Sequence[Line] = ()

    def show(self, lines: Sequence[Line]) -> None:
        """Draw these instead of the last ones."""
        before, self.lines = self.lines, lines
        found = (
            _difference(_at(before, y), _at(lines, y), y, self.size.width)
            for y in range(max(len(before), len(lines)))
        )
        regions = [each for each in found if each is not None]
        if regions:
            self.refresh(*regions)

    def render_line(self, y: int) -> Strip:
        """Textual asks for each line that it draws."""
        line, wide = _at(self.lines, y), self.size.width
        # Whoever made the line may have forgotten it: no other text reaches the terminal.
        segments = [Segment(plain(span.text), STYLES[span.tone]) for span in line]
        taken = width_of(line)
        if taken < wide:
            segments.append(Segment(" " * (wide - taken), Style()))
        return Strip(segments, max(taken, wide))

    @property
    def text(self) -> str:
        """What can be read."""
        return "\n".join(text_of(line).rstrip() for line in self.lines)


def _at(lines: Sequence[Line], y: int) -> Line:
    return lines[y] if y < len(lines) else EMPTY


def _difference(before: Line, now: Line, y: int, width: int) -> Region | None:
    """What of a line must be drawn again: textual draws up to the last change."""
    if before == now:
        return None
    widths = [cells(span.text) for span in now]
    if [cells(span.text) for span in before] != widths:
        return Region(0, y, width, 1)
    last = max(number for number, each in enumerate(now) if each != before[number])
    return Region(0, y, sum(widths[: last + 1]), 1)
