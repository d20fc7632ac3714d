"""`penstock top` as an application of textual: the picture, and what each key does to it."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Key
from textual.geometry import Region
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

from penstock.proxy.commands.admin_client import AdminClient, AdminError
from penstock.proxy.commands.plain_text import plain
from penstock.proxy.commands.requests import text as waterfall
from penstock.proxy.commands.status import told_of, verdict_of
from penstock.proxy.commands.top.dialogs import HELP, Question, Reading, outcome, question
from penstock.proxy.commands.top.feed import Link, Viewer
from penstock.proxy.commands.top.lines import EMPTY, Line, Told, Tone, text_of
from penstock.proxy.commands.top.picture import Scene, picture
from penstock.proxy.commands.top.rows import began, facts
from penstock.proxy.commands.top.view import View

INTERRUPTED: Final = 130
# A request is asked for as of a moment after it began: both clocks are rounded.
ROUNDED: Final = timedelta(milliseconds=5)
_STATES: Final = {"d": "drain", "r": "ready", "m": "maint"}
# What a picture of another version may lack.
UNREADABLE: Final = (
    *(KeyError, TypeError, ValueError, AttributeError, IndexError),
    *(ArithmeticError, OSError),  # a time that is none
)
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


def unreadable(what: str, error: Exception) -> str:
    """What to say of a picture, or an answer, that lacks something."""
    return f"{what} cannot be shown ({error!r}): is penstock of another version?"


class Canvas(Widget):
    """As many lines as it has rows. Of a new picture only those that have changed are drawn."""

    lines: Sequence[Line] = ()

    def show(self, lines: Sequence[Line]) -> None:
        """Draw these instead of the last ones."""
        before, self.lines = self.lines, lines
        changed = [
            Region(0, y, self.size.width, 1)
            for y in range(max(len(before), len(lines)))
            if before[y : y + 1] != lines[y : y + 1]
        ]
        if changed:
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        """Textual asks for each line that it draws."""
        # Whoever made the line may have forgotten `plain`: no other text reaches the terminal.
        line = self.lines[y] if y < len(self.lines) else EMPTY
        strip = Strip([Segment(plain(span.text), STYLES[span.tone]) for span in line])
        return strip.extend_cell_length(self.size.width, Style())

    @property
    def text(self) -> str:
        """What can be read."""
        return "\n".join(text_of(line).rstrip() for line in self.lines)


class Main(Screen[None]):
    """`admin`: makes a client for one question."""

    def __init__(self, url: str, link: Link, admin: Callable[[], AdminClient]) -> None:
        super().__init__()
        self.view = View()
        self._scene = Scene(url, link)
        self._admin = admin

    def compose(self) -> ComposeResult:
        yield Canvas()

    def on_resize(self) -> None:
        """Draw it for the new size."""
        self.call_after_refresh(self.draw)

    async def on_key(self, event: Key) -> None:
        """Do what a key means, before the next one. While the filter is edited it is text.

        Textual's own bindings run a key later than the next one has come.
        """
        event.stop()
        snapshot = self._scene.snapshot
        try:
            if self.view.editing and self.view.edit(event.key, event.character):
                self.draw()
            elif event.key == "q":
                self.app.exit()
            elif event.key in ("question_mark", "h"):
                await self.app.push_screen(Reading("penstock top", HELP))
            elif snapshot is None or self.view.press(event.key, snapshot):
                self.say("")
            else:
                await self._ask(event.key, snapshot)
        except UNREADABLE as error:
            self.say(unreadable("It", error))

    def heard(self, snapshot: Told) -> None:
        """There is a new snapshot. One that cannot be shown is a fault of the versions."""
        before = self._scene
        self._scene = before._replace(snapshot=snapshot)
        try:
            self.draw()
        except UNREADABLE as error:
            link = Link("lost", before.link.since, unreadable("The picture", error))
            self._scene = before._replace(link=link)
            self.draw()

    def became(self, link: Link) -> None:
        """The stream stands differently."""
        before = self._scene.link
        self._scene = self._scene._replace(link=link)
        # Once it is live, the picture that follows draws it.
        if link.state != "live" and (link.state, link.why) != (before.state, before.why):
            self.draw()

    def draw(self) -> None:
        canvas = self.query_one(Canvas)
        width, height = canvas.size
        if width and height:
            canvas.show(picture(self._scene, self.view, width, height))

    def say(self, note: str) -> None:
        """Answer a key, until the next one."""
        self._scene = self._scene._replace(note=note)
        self.draw()

    async def _ask(self, key: str, snapshot: Told) -> None:
        """The keys that open something."""
        backend = self.view.backends.marked(self.view.rows(snapshot))
        request = self.view.requests.marked(snapshot["requests"][self.view.kind])
        if key == "v":
            told = [*verdict_of(snapshot["verdicts"]), *told_of(snapshot["proxy"])]
            await self.app.push_screen(Reading("Why is it slow?", "\n".join(told)))
        elif key in _STATES:
            await self._change(backend, _STATES[key], snapshot["backends"])
        elif key == "enter" and self.view.focus == "backends" and backend is not None:
            shown = Reading(f"Backend {backend['name']}", "\n".join(facts(backend)))
            await self.app.push_screen(shown)
        elif key == "enter" and self.view.focus == "requests" and request is not None:
            shown = Reading(f"Request {request['id']}", "Asking for it.")
            await self.app.push_screen(shown)
            self.run_worker(self._open(request, shown))

    async def _open(self, request: Told, dialog: Reading) -> None:
        try:
            query = {"before": (began(request) + ROUNDED).isoformat().replace("+00:00", "Z")}
            query |= {"tenant": request["tenant"]} if request["tenant"] else {}
            found = await asyncio.to_thread(self._admin().requests_with_id, request["id"], query)
            same = [each for each in found if each["tenant"] == request["tenant"]]
            dialog.tell(waterfall((same or found)[0]))
        except AdminError as error:
            dialog.tell(str(error))
        except UNREADABLE as error:
            dialog.tell(unreadable("It", error))

    async def _change(self, backend: Told | None, state: str, backends: Sequence[Told]) -> None:
        """Change the marked backend, after a question."""
        if backend is None:
            self.say("No backend is marked.")
            return
        name = str(backend["name"])
        worse = (backend.get("newcomer") or {}).get("stage") == "worse"
        if backend["admin_state"] == state and not (worse and state == "ready"):
            self.say(f"{name} is in {state} already.")
            return

        async def change() -> None:
            self.say(f"{state} {name} ...")
            try:
                self.say(outcome(await asyncio.to_thread(self._admin().set_state, name, state)))
            except AdminError as error:
                self.say(f"Not done: {error}")

        def answered(yes: bool | None) -> None:
            if yes:
                self.run_worker(change())
            else:
                self.say(f"{name} is left as it is.")

        lines = question(backend, state, backends)
        await self.app.push_screen(Question(name, state, lines), answered)


class Top(App[None]):
    """`read`: tells a viewer what the stream says. `admin`: makes a client for one question."""

    ENABLE_COMMAND_PALETTE = False
    # A waterfall needs all of 80 columns, and only a wider screen has room for a frame.
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (86, "-wide")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "interrupt", "stop", priority=True),
        Binding("ctrl+z", "suspend_process", "suspend", priority=True),
    ]
    CSS = """
    Screen { background: ansi_default; color: ansi_default; overflow: hidden; }
    Canvas { width: 100%; height: 100%; }
    Reading { align: center middle; background: ansi_default; }
    Question { align: center middle; background: transparent; }
    .box {
        width: auto; min-width: 44; max-width: 100%; height: auto; max-height: 100%;
        padding: 0 1; border: round ansi_default; background: ansi_default;
    }
    Reading.-narrow .box { border: none; padding: 0; }
    .box VerticalScroll { width: auto; max-width: 100%; height: auto; max-height: 1fr; }
    .box Static { width: auto; max-width: 100%; height: auto; }
    .heading { text-style: bold; margin-bottom: 1; }
    .keys { color: ansi_bright_black; margin-top: 1; }
    """

    def __init__(
        self,
        url: str,
        read: Callable[[Viewer], Awaitable[None]],
        admin: Callable[[], AdminClient],
        now_s: float,
    ) -> None:
        super().__init__(ansi_color=True)
        self.main = Main(url, Link("connecting", now_s), admin)
        self._read = read

    async def on_mount(self) -> None:
        await self.push_screen(self.main)
        loop = asyncio.get_running_loop()
        # A terminal that is closed, and `kill`: the screen is given back as it was.
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.exit)
        self.run_worker(self._follow())

    async def _follow(self) -> None:
        await self._read(self.main)

    def action_interrupt(self) -> None:
        """End as other commands do on Ctrl-C."""
        self.exit(return_code=INTERRUPTED)
