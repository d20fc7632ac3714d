"""What opens above the picture: a text to read, and a question before a backend is changed."""

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from penstock.proxy.commands.fleet_table import state_of
from penstock.proxy.commands.plain_text import plain
from penstock.proxy.commands.top.lines import Told, many
from penstock.proxy.commands.top.rows import backend_key

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


class Dialog(ModalScreen[bool]):
    """A text below a heading. `keys`: what can be pressed. `tell` shows another text."""

    def __init__(self, heading: str, text: str, keys: str) -> None:
        super().__init__()
        self.heading = plain(heading)
        self.text = text
        self._keys = plain(keys)

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            yield Static(self.heading, markup=False, classes="heading")
            with VerticalScroll(can_focus=False):
                yield Static(markup=False, id="text")
            yield Static(self._keys, markup=False, classes="keys")

    def on_mount(self) -> None:
        self.tell(self.text)

    def tell(self, text: str) -> None:
        self.text = text
        shown = "\n".join(map(plain, text.split("\n")))
        self.query_one("#text", Static).update(shown)


class Reading(Dialog):
    """A text that may be longer than the screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "dismiss(False)", "close"),
        Binding("up,k", "roll(-1)", "up"),
        Binding("down,j", "roll(1)", "down"),
        Binding("pageup", "roll(-10)", "page up"),
        Binding("pagedown,space", "roll(10)", "page down"),
    ]

    def __init__(self, heading: str, text: str) -> None:
        super().__init__(heading, text, "Escape closes, Up and Down scroll")

    def action_roll(self, by: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)


class Question(Dialog):
    """Something to confirm. Only `y` confirms it: Enter may be meant for something else."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "yes"),
        Binding("n,escape,q,enter", "dismiss(False)", "no"),
    ]

    def __init__(self, name: str, state: str, lines: Sequence[str]) -> None:
        keys = f"y {state} {name}   n leave it as it is"
        super().__init__(f"{state} {name}?", "\n".join(lines), keys)


def question(backend: Told, state: str, backends: Sequence[Told]) -> list[str]:
    """What a change would do to a backend and its pool. What is serious begins with a `!`."""
    pool, running = backend["pool"], backend["requests_in_flight"]
    now = (
        f"Now: wanted {backend['admin_state']}, state {state_of(backend)},"
        f" {running:,} in flight, pool {pool}."
    )
    if state == "ready":
        healthy = backend["state"] == "ready"
        when = "Requests come at once." if healthy else "Its probes must pass before requests come."
        return [now, "It gets requests again as soon as it is healthy.", when]
    rest = f"The {many(running, 'request')} there may finish." if running else "None runs there."
    probes = " and no probes" if state == "maint" else ""
    does = f"It gets no new requests{probes}. {rest}"
    own = backend_key(backend)
    peers = [each for each in backends if each["pool"] == pool and backend_key(each) != own]
    serving = sum(each["can_serve"] for each in peers)
    if not serving:
        return [now, does, f"! No other backend of {pool} can serve: new requests will get 503."]
    of = many(len(peers), "other backend")
    return [now, does, f"{serving:,} of {of} of {pool} can serve: requests go there."]


def outcome(told: Told) -> str:
    """What the admin port says of a change that was made."""
    line = (
        f"{told['name']}: wanted {told['admin_state']}, {told['requests_in_flight']:,} in flight."
    )
    if told["admin_state"] == "ready" or told.get("pool_can_serve", True):
        return line
    return f"{line} No backend of {told['pool']} can serve now: new requests get 503."
