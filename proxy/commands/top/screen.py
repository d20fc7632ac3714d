"""The picture on the screen, and what each key does to it."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

from textual.app import ComposeResult
from textual.events import Key
from textual.screen import Screen

from penstock.proxy.commands.admin_client import AdminError
from penstock.proxy.commands.proxy_lines import told_of
from penstock.proxy.commands.status import verdict_of
from penstock.proxy.commands.top.backend_rows import facts
from penstock.proxy.commands.top.canvas import Canvas
from penstock.proxy.commands.top.change_text import outcome, question
from penstock.proxy.commands.top.columns import Told
from penstock.proxy.commands.top.dialogs import HELP, Question, Reading
from penstock.proxy.commands.top.link import Link
from penstock.proxy.commands.top.picture import Scene, backend_columns, picture
from penstock.proxy.commands.top.view import View
from penstock.proxy.commands.trace import text as waterfall

PAGE_ROWS: Final = 10
ALL_ROWS: Final = 1_000_000
# A request is asked for as of a moment after it began: both clocks are rounded.
ROUNDED: Final = timedelta(milliseconds=5)
# What each key does. Textual's own bindings run a key later than the next one has come, so that
# what is typed fast would be out of order.
KEYS: Final = {
    **dict.fromkeys(("up", "k"), "move(-1)"),
    **dict.fromkeys(("down", "j"), "move(1)"),
    "pageup": f"move({-PAGE_ROWS})",
    "pagedown": f"move({PAGE_ROWS})",
    "home": f"move({-ALL_ROWS})",
    "end": f"move({ALL_ROWS})",
    **dict.fromkeys(("tab", "shift+tab"), "other_list"),
    "s": "sort(1)",
    "S": "sort(-1)",
    "i": "turn_round",
    "w": "worst_first",
    "f": "other_requests",
    "slash": "filter",
    "escape": "show_all",
    "enter": "open",
    "v": "why",
    "d": "change('drain')",
    "r": "change('ready')",
    "m": "change('maint')",
    **dict.fromkeys(("question_mark", "h"), "help"),
    "q": "app.quit",
}
# What a picture of another version may lack.
UNREADABLE: Final = (
    *(KeyError, TypeError, ValueError, AttributeError, IndexError),
    *(ArithmeticError, OSError),  # a time that is none
)


class Admin(Protocol):
    """What is asked of the admin port beside the stream. It blocks."""

    def set_state(self, name: str, state: str) -> dict[str, Any]:
        """Set a backend's admin state."""

    def requests_with_id(self, request_id: str, query: Mapping[str, str]) -> list[dict[str, Any]]:
        """The requests with this id."""


class Main(Screen[None]):
    """`admin`: makes a client for one question."""

    def __init__(self, url: str, link: Link, admin: Callable[[], Admin]) -> None:
        super().__init__()
        self.view = View()
        self._scene = Scene(url, link)
        self._admin = admin

    def compose(self) -> ComposeResult:
        """The picture is all."""
        yield Canvas()

    def on_resize(self) -> None:
        """Draw it for the new size."""
        self.call_after_refresh(self.draw)

    async def on_key(self, event: Key) -> None:
        """Do what a key means, before the next one. While the filter is edited it is text."""
        event.stop()
        if self.view.editing and self.view.edit(event.key, event.character):
            self.draw()
        elif event.key in KEYS:
            try:
                await self.app.run_action(KEYS[event.key], self)
            except UNREADABLE as error:
                self.say(f"It cannot be shown ({error!r}): is penstock of another version?")

    def heard(self, snapshot: Mapping[str, Any]) -> None:
        """There is a new snapshot. One that cannot be shown is a fault of the versions."""
        before = self._scene
        self._scene = before._replace(snapshot=snapshot)
        try:
            self.draw()
        except UNREADABLE as error:
            why = f"The picture cannot be shown ({error!r}): is penstock of another version?"
            self._scene = before._replace(link=Link("lost", before.link.since, why))
            self.draw()

    def became(self, link: Link) -> None:
        """The stream stands differently."""
        moved = link.state != self._scene.link.state or link.why != self._scene.link.why
        self._scene = self._scene._replace(link=link)
        if moved and link.state != "live":  # the picture that follows draws it
            self.draw()

    def draw(self) -> None:
        """Show what is known now."""
        canvas = self.query_one(Canvas)
        width, height = canvas.size
        if width and height:
            canvas.show(picture(self._scene, self.view, width, height))

    def say(self, note: str) -> None:
        """Answer a key, until the next one."""
        self._scene = self._scene._replace(note=note)
        self.draw()

    def action_move(self, by: int) -> None:
        """Move the mark."""
        if self._scene.snapshot is not None:
            self.view.move(self._scene.snapshot, by)
        self.say("")

    def action_other_list(self) -> None:
        """The keys move in the other list."""
        self.view.other_list()
        self.say("")

    def action_sort(self, step: int) -> None:
        """Sort by another column: one that is shown."""
        snapshot = self._scene.snapshot
        if snapshot is not None:
            wide = self.query_one(Canvas).size.width
            columns = backend_columns(snapshot, wide)
            self.view.sort([column for column, _ in columns], step)
        self.say("")

    def action_turn_round(self) -> None:
        """Sort in the other direction."""
        self.view.turn_round()
        self.say("")

    def action_worst_first(self) -> None:
        """Sort as at the beginning."""
        self.view.sorted_by = None
        self.say("")

    def action_other_requests(self) -> None:
        """The failed ones or the slow ones."""
        self.view.other_requests()
        self.say("")

    def action_filter(self) -> None:
        """Begin to edit the filter."""
        self.view.editing = True
        self.say("")

    def action_show_all(self) -> None:
        """End the filter."""
        self.view.wanted = ""
        self.say("")

    async def action_help(self) -> None:
        """What the keys do."""
        await self.app.push_screen(Reading("penstock top", HELP))

    async def action_why(self) -> None:
        """The sentence of each pool at its full length, and what to do."""
        snapshot = self._scene.snapshot
        if snapshot is not None:
            told = [*verdict_of(snapshot["verdicts"]), *told_of(snapshot["proxy"])]
            await self.app.push_screen(Reading("Why is it slow?", "\n".join(told)))

    async def action_open(self) -> None:
        """More on what is marked."""
        snapshot = self._scene.snapshot
        if snapshot is None:
            return
        if self.view.focus == "backends":
            backend = self.view.marked_backend(snapshot)
            if backend is not None:
                await self.app.push_screen(
                    Reading(f"Backend {backend['name']}", "\n".join(facts(backend)))
                )
            return
        request = self.view.marked_request(snapshot)
        if request is not None:
            dialog = Reading(f"Request {request['id']}", "Asking for it.")
            await self.app.push_screen(dialog)
            self.run_worker(self._open(request, dialog))

    async def _open(self, request: Told, dialog: Reading) -> None:
        try:
            before = datetime.fromisoformat(request["began"]) + ROUNDED
            query = {"before": before.isoformat().replace("+00:00", "Z")}
            if request["tenant"]:
                query["tenant"] = request["tenant"]
            found = await asyncio.to_thread(self._admin().requests_with_id, request["id"], query)
            same = [each for each in found if each["tenant"] == request["tenant"]]
            dialog.tell(waterfall((same or found)[0]))
        except AdminError as error:
            dialog.tell(str(error))
        except UNREADABLE as error:
            dialog.tell(f"It cannot be shown ({error!r}): is penstock of another version?")

    async def action_change(self, state: str) -> None:
        """Ask whether the marked backend shall be changed."""
        snapshot = self._scene.snapshot
        backend = self.view.marked_backend(snapshot) if snapshot is not None else None
        if snapshot is None or backend is None:
            self.say("No backend is marked.")
            return
        name = str(backend["name"])
        worse = (backend.get("newcomer") or {}).get("stage") == "worse"
        if backend["admin_state"] == state and not (worse and state == "ready"):
            self.say(f"{name} is in {state} already.")
            return
        lines = question(backend, state, snapshot["backends"])

        def answered(yes: bool | None) -> None:
            if yes:
                self.run_worker(self._change(name, state))
            else:
                self.say(f"{name} is left as it is.")

        await self.app.push_screen(Question(f"{state} {name}?", lines, f"{state} {name}"), answered)

    async def _change(self, name: str, state: str) -> None:
        self.say(f"{state} {name} ...")
        try:
            self.say(outcome(await asyncio.to_thread(self._admin().set_state, name, state)))
        except AdminError as error:
            self.say(f"Not done: {error}")
