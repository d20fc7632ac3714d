"""What opens above the picture: a text to read, and a question to answer."""

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from penstock.proxy.commands.plain_text import plain

HELP = """\
Up, Down, PgUp, PgDn, Home, End   move the mark; j and k too
Tab        move in the backends, or in the requests
s, S       sort the backends by the next column, or by the one before
i          the other direction
w          the worst first, as at the beginning
/          find names, pools and states of backends; Escape shows all again
Enter      all figures of the marked backend, or the waterfall of the request
v          why it is slow, and what to do, at full length
f          the failed requests, or the slow ones
d, r, m    drain, ready or maint of the marked backend, after a question
q          quit

Signs before a row: ! cannot serve, or failed lately; ~ slow or its cache is
full; - not in use, or on its way back. > is the mark.

TTFT is the time to the first token. docs/top.md says what each part shows."""


class Reading(ModalScreen[None]):
    """A text. `tell` gives it another one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "dismiss", "close"),
        Binding("up,k", "roll(-1)", "up"),
        Binding("down,j", "roll(1)", "down"),
        Binding("pageup", "roll(-10)", "page up"),
        Binding("pagedown,space", "roll(10)", "page down"),
    ]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self.heading = plain(title)
        self.text = text

    def compose(self) -> ComposeResult:
        """The box and its text."""
        with Vertical(classes="box") as box:
            box.border_title = ""
            yield Static(self.heading, markup=False, classes="heading")
            with VerticalScroll(can_focus=False):
                yield Static(_lines(self.text), markup=False, id="text")
            yield Static("Escape closes, Up and Down scroll", markup=False, classes="keys")

    def tell(self, text: str) -> None:
        """Show this instead."""
        self.text = text
        self.query_one("#text", Static).update(_lines(text))

    def action_roll(self, by: int) -> None:
        """Scroll by so many lines."""
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)


class Question(ModalScreen[bool]):
    """Something to confirm. Only `y` confirms it: Enter may be meant for something else."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "yes"),
        Binding("n,escape,q,enter", "dismiss(False)", "no"),
    ]

    def __init__(self, title: str, lines: Sequence[str], yes: str) -> None:
        super().__init__()
        self.heading = plain(title)
        self.text = "\n".join(lines)
        self._yes = plain(yes)

    def compose(self) -> ComposeResult:
        """The box, what is asked, and the answers."""
        with Vertical(classes="box"):
            yield Static(self.heading, markup=False, classes="heading")
            yield Static(_lines(self.text), markup=False, id="text")
            yield Static(f"y {self._yes}   n leave it as it is", markup=False, classes="keys")


def _lines(text: str) -> str:
    return "\n".join(plain(line) for line in text.split("\n"))
