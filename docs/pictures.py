"""The pictures of README and of these pages, as SVG: `python docs/pictures.py` writes them anew.

Each is drawn twice, for light and for dark backgrounds. They hold no fonts and load nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

FOLDER: Final = Path(__file__).parent / "pictures"
FONT: Final = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours: of text, of what matters less, of boxes and their edges, of what stands out."""

    text: str
    quiet: str
    box: str
    edge: str
    accent: str
    accent_box: str
    failure: str


THEMES: Final = {
    "light": Theme("#1f2328", "#59636e", "#f6f8fa", "#afb8c1", "#0969da", "#ddf4ff", "#cf222e"),
    "dark": Theme("#e6edf3", "#9198a1", "#161b22", "#484f58", "#58a6ff", "#12263f", "#ff7b72"),
}


class Drawing:
    """The elements of one picture, in the order in which they are drawn."""

    def __init__(self, width: int, height: int, title: str, theme: Theme) -> None:
        self._theme = theme
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" font-family="{FONT}" role="img">',
            f"<title>{escape(title)}</title>",
        ]

    def text(
        self, x: int, y: int, text: str, *, size: int = 14, colour: str = "", anchor: str = "middle"
    ) -> None:
        fill = colour or self._theme.text
        self._parts.append(
            f'<text x="{x}" y="{y}" font-size="{size}" fill="{fill}" '
            f'text-anchor="{anchor}">{escape(text)}</text>'
        )

    def box(self, x: int, y: int, width: int, height: int, *, accent: bool = False) -> None:
        theme = self._theme
        fill, stroke = (theme.accent_box, theme.accent) if accent else (theme.box, theme.edge)
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{fill}" '
            f'stroke="{stroke}" stroke-width="1.5"/>'
        )

    def bar(self, x: int, y: int, width: int, colour: str) -> None:
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="10" rx="3" fill="{colour}"/>'
        )

    def arrow(self, *points: tuple[int, int], colour: str = "", dashed: bool = False) -> None:
        """A line through the points, with a head at the last one."""
        colour = colour or self._theme.quiet
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        path = " ".join(f"{x},{y}" for x, y in points)
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"{dash}/>'
        )
        (x0, y0), (x, y) = points[-2:]
        dx, dy = (x > x0) - (x < x0), (y > y0) - (y < y0)
        back_x, back_y = x - 8 * dx, y - 8 * dy
        head = f"{x},{y} {back_x - 4 * dy},{back_y - 4 * dx} {back_x + 4 * dy},{back_y + 4 * dx}"
        self._parts.append(f'<polygon points="{head}" fill="{colour}"/>')

    def svg(self) -> str:
        return "\n".join([*self._parts, "</svg>", ""])


def fleet(theme: Theme) -> str:
    """Clients, the proxy, and servers with unequal queues."""
    drawing = Drawing(880, 270, "penstock between clients and vLLM servers", theme)
    for index, client in enumerate(("OpenAI SDK", "Anthropic SDK", "any HTTP client")):
        y = 33 + 75 * index
        drawing.box(20, y, 150, 50)
        drawing.text(95, y + 30, client)
        drawing.arrow((170, y + 25), (240, y + 25), (240, 133), (288, 133))
    drawing.box(290, 68, 200, 130, accent=True)
    drawing.text(390, 106, "penstock", size=20)
    drawing.text(390, 132, "data port 8080", colour=theme.quiet)
    drawing.text(390, 154, "counts tokens, picks a server", size=13, colour=theme.quiet)
    drawing.text(390, 176, "admin port 9321", colour=theme.quiet)
    drawing.text(390, 244, "probes, metrics, penstock status", size=13, colour=theme.quiet)
    drawing.arrow((390, 198), (390, 226), dashed=True)
    servers = (("vLLM 1", 20_140, 200), ("vLLM 2", 310, 6), ("vLLM 3", 4_800, 48))
    for index, (name, tokens, width) in enumerate(servers):
        y = 15 + 85 * index
        chosen = tokens == min(each[1] for each in servers)
        drawing.box(610, y, 250, 66, accent=chosen)
        drawing.text(625, y + 25, name, anchor="start")
        drawing.text(845, y + 25, f"{tokens:,} tokens wait", size=13, anchor="end")
        drawing.bar(625, y + 40, width, theme.accent if chosen else theme.quiet)
        colour = theme.accent if chosen else theme.edge
        drawing.arrow((490, 133), (550, 133), (550, y + 33), (608, y + 33), colour=colour)
    drawing.arrow((490, 133), (608, 133), colour=theme.accent)
    drawing.text(578, 124, "next", size=13, colour=theme.accent)
    return drawing.svg()


STEPS: Final = (
    ("Accept", ("key, path, size,", "overload: by the", "head alone")),
    ("Read", ("the body,", "within limits", "")),
    ("Estimate", ("prompt tokens,", "expected answer,", "known prefix")),
    ("Choose", ("a backend, and", "count the tokens", "there at once")),
    ("Wait", ("for the first", "token; the status", "line waits too")),
    ("Relay", ("every event", "as it came", "")),
    ("Account", ("metrics, access", "line, measured", "speeds")),
)


def request(theme: Theme) -> str:
    """A request's way, and what a failure does before and after the first token."""
    drawing = Drawing(880, 240, "The way of a request through penstock", theme)
    width, gap = 110, 14
    middles = []
    for index, (name, lines) in enumerate(STEPS):
        x = 10 + index * (width + gap)
        middles.append(x + width // 2)
        drawing.box(x, 70, width, 96, accent=name in ("Choose", "Wait"))
        drawing.text(x + width // 2, 93, name, size=15)
        for number, line in enumerate(lines):
            drawing.text(x + width // 2, 115 + 17 * number, line, size=11, colour=theme.quiet)
        if index:
            drawing.arrow((x - gap, 118), (x - 1, 118))
    choose, wait, relay = middles[3:6]
    drawing.arrow((wait, 70), (wait, 40), (choose, 40), (choose, 68), colour=theme.failure)
    text = "a failure before the first token: another backend"
    drawing.text((choose + wait) // 2, 28, text, size=13, colour=theme.failure)
    drawing.arrow((relay, 166), (relay, 200), colour=theme.failure)
    text = "a failure after it: an error event, never a clean end"
    drawing.text(relay, 220, text, size=13, colour=theme.failure)
    return drawing.svg()


PICTURES: Final[dict[str, Callable[[Theme], str]]] = {"fleet": fleet, "request": request}


def drawn() -> dict[str, str]:
    """The text of each picture by the name of its file."""
    return {
        f"{name}-{shade}.svg": draw(theme)
        for name, draw in PICTURES.items()
        for shade, theme in THEMES.items()
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file, svg in drawn().items():
        (FOLDER / file).write_text(svg)
