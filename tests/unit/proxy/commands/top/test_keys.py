"""The keys, pressed on the real application without a terminal."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from copy import deepcopy
from typing import Any

import pytest
from textual.geometry import Region
from textual.pilot import Pilot

from penstock.proxy.commands.admin_client import AdminClient, AdminError
from penstock.proxy.commands.top.app import Canvas, Top
from penstock.proxy.commands.top.dialogs import Question, Reading
from penstock.proxy.commands.top.feed import Link, Viewer
from tests.browser.figures import AT_S, PARTS, snapshot

pytestmark = pytest.mark.once


class Port(AdminClient):
    """The admin port, as far as keys ask it. `refusal`: what it says instead."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9321", None)
        self.asked: list[tuple[str, ...]] = []
        self.refusal = ""

    def _hear(self, *asked: str) -> None:
        self.asked.append(asked)
        if self.refusal:
            raise AdminError(self.refusal)

    def set_state(self, name: str, state: str) -> dict[str, Any]:
        self._hear(name, state)
        told = {"admin_state": state, "requests_in_flight": 3, "pool_can_serve": True}
        return {"name": name, "pool": "chat", **told}

    def requests_with_id(self, request_id: str, query: Mapping[str, str]) -> list[dict[str, Any]]:
        self._hear(request_id, *query.values())
        return PARTS


class Shown:
    """The application on a screen, and what can be read there."""

    def __init__(self, app: Top, pilot: Pilot[None], port: Port) -> None:
        self.app = app
        self.pilot = pilot
        self.port = port

    async def press(self, *keys: str) -> str:
        await self.pilot.press(*keys)
        return self.text

    @property
    def text(self) -> str:
        return self.app.main.query_one(Canvas).text

    @property
    def lines(self) -> list[str]:
        return self.text.split("\n")

    @property
    def marked(self) -> str:
        return next(line for line in self.lines if line.startswith(">"))[2:].split()[0]

    @property
    def rows(self) -> list[str]:
        return [line[2:].split()[0] for line in self.lines if line[2:6] == "gpu-"]

    def dialog(self, kind: type[Reading] | type[Question]) -> str:
        assert isinstance(self.app.screen, kind)
        return f"{self.app.screen.heading}\n{self.app.screen.text}"

    async def until(self, holds: Callable[[], bool]) -> None:
        """Threads ask the port: wait until they have answered."""
        for _ in range(100):
            if holds():
                return
            asking = [each for each in self.app.workers if each.node is self.app.main]
            if asking:  # of an empty list it would wait for all, and one reads the stream
                await self.app.workers.wait_for_complete(asking)
            await self.pilot.pause()
        raise AssertionError(self.text)


@asynccontextmanager
async def shown(width: int = 80, height: int = 24) -> AsyncIterator[Shown]:
    async def silent(viewer: Viewer) -> None:
        await asyncio.Event().wait()

    port = Port()
    app = Top("http://127.0.0.1:9321", silent, lambda: port, AT_S)
    async with app.run_test(size=(width, height)) as pilot:
        await pilot.pause()
        app.main.became(Link("live", AT_S))
        app.main.heard(snapshot(40))
        yield Shown(app, pilot, port)


# Keys, and what can be read after them. `not` before a text: it is not there.
SCENES: dict[str, list[tuple[str, ...]]] = {
    "the mark moves": [
        ("", ">!gpu-6"),
        ("down j", ">!gpu-5"),
        ("k", ">!gpu-3"),
        ("end", "> gpu-39"),
        ("home", ">!gpu-6"),
    ],
    "s sorts by the next column that is shown, and the mark stays on its backend": [
        ("", "worst first"),
        ("s", "by BACKEND, in order", "\ngpu-0 gpu-1 gpu-2 ", ">!gpu-6"),
        ("s s", "by SLOWER, largest first", "SLOWERv"),
        ("home", ">~gpu-4", "\ngpu-4 "),
        ("i", "by SLOWER, in order"),
        ("S", "by STATE"),
        ("w", "worst first"),
    ],
    "the filter finds as it is typed": [
        ("slash d r a ? x backspace backspace i n", "find: drain_", "\ngpu-8\n"),
        ("enter", "1 fit the filter 'drain'", "not find:"),
        ("d", "gpu-8 is in drain already."),
        ("escape", "\ngpu-6 gpu-3 gpu-5 gpu-4 gpu-8 "),
        ("slash n o t h i n g enter d", "No backend is marked."),
    ],
    "texts open above the picture": [
        ("enter", "Backend gpu-6", "in flight  6"),
        ("escape v", "To do: Add a backend, or room in caches", "not Backend gpu-6"),
        ("q question_mark", "drain, ready or maint"),
        ("escape r", "gpu-6 is in ready already.", "not drain, ready or maint"),
    ],
    "f shows the failed requests": [("", "not 502"), ("f", "502 bac", "f slow"), ("f", "not 502")],
}


@pytest.mark.parametrize("scene", SCENES)
async def test_keys_change_what_is_shown(scene: str) -> None:
    async with shown() as screen:
        for keys, *texts in SCENES[scene]:
            await screen.press(*keys.split())
            read = f"{screen.text}\n{' '.join(screen.rows)}\n"
            if isinstance(screen.app.screen, Reading):
                read += screen.dialog(Reading)
            for text in texts:
                assert (text.removeprefix("not ") in read) != text.startswith("not "), (keys, text)
        assert not screen.port.asked


@pytest.mark.parametrize(("keys", "status"), [("q", 0), ("question_mark ctrl+c", 130)])
async def test_it_ends_with_a_status(keys: str, status: int) -> None:
    async with shown() as screen:
        await screen.press(*keys.split())
        assert screen.app.return_code == status


@pytest.mark.parametrize("refusal", ["", "no request with this id is kept"])
async def test_enter_opens_a_request_as_a_waterfall_or_says_that_it_is_gone(refusal: str) -> None:
    async with shown() as screen:
        screen.port.refusal = refusal
        await screen.press("tab", "down", "enter")
        await screen.until(lambda: "Asking" not in screen.dialog(Reading))
        assert screen.port.asked == [("request-1", "2026-11-26T13:16:40.005000Z", "research")]
        told = [refusal] if refusal else ["waits in penstock: kv_cache", "####"]
        assert not [each for each in told if each not in screen.dialog(Reading)]


async def test_a_backend_is_drained_after_a_question_only() -> None:
    async with shown() as screen:
        await screen.press("down", "down", "d")
        assert "drain gpu-5?" in screen.dialog(Question)
        assert "The 5 requests there may finish." in screen.dialog(Question)
        await screen.press("enter")  # which may be meant for something else
        assert "gpu-5 is left as it is." in screen.text
        assert not screen.port.asked
        await screen.press("d", "y")
        await screen.until(lambda: "gpu-5: wanted drain, 3 in flight." in screen.text)
        assert screen.port.asked == [("gpu-5", "drain")]


async def test_the_question_names_the_backend_that_was_marked_when_it_was_asked() -> None:
    async with shown() as screen:
        await screen.press("m")
        changed = snapshot(40)
        changed["backends"] = changed["backends"][7:]  # gpu-6 is gone, another row is marked
        screen.app.main.heard(changed)
        await screen.press("y")
        await screen.until(lambda: bool(screen.port.asked))
        assert screen.port.asked == [("gpu-6", "maint")]


async def test_a_refusal_is_shown() -> None:
    async with shown() as screen:
        screen.port.refusal = "this token may only read"
        await screen.press("m", "y")
        await screen.until(lambda: "Not done: this token may only read" in screen.text)
        assert "Not done" not in await screen.press("down")


async def test_it_is_drawn_anew_for_another_size() -> None:
    async with shown() as screen:
        assert len(screen.lines) == 24
        await screen.pilot.resize_terminal(200, 60)
        await screen.until(lambda: len(screen.lines) == 60)
        assert "IN FLIGHT" in screen.text


async def test_a_snapshot_of_another_version_ends_nothing() -> None:
    async with shown() as screen:
        screen.app.main.heard({"backends": 5})
        assert "another version?" in screen.text
        assert screen.marked == "gpu-6"
        screen.app.main.became(Link("live", AT_S))
        screen.app.main.heard(snapshot(3))
        assert "another version?" not in screen.text


async def test_a_proxy_that_lies_ends_nothing_and_commands_no_terminal() -> None:
    async with shown() as screen:
        lies = deepcopy(snapshot(3))
        lies["slos"][0]["state"] = "\x1b]0;owned\x07"
        screen.app.main.heard(lies)
        canvas = screen.app.main.query_one(Canvas)
        segments = [each for y in range(24) for each in canvas.render_line(y)]
        assert not [each for each in segments if "\x1b" in each.text]
        for since in (1e308, 1e18):
            lies = deepcopy(snapshot(3))
            lies["verdicts"][0]["since"] = since
            screen.app.main.heard(lies)
            assert "another version?" in screen.text
            await screen.press("v")


async def test_only_what_changed_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shown() as screen:
        drawn: list[Region] = []
        canvas = screen.app.main.query_one(Canvas)
        refresh = canvas.refresh

        def seen(*regions: Region, **options: bool) -> Canvas:
            drawn.extend(regions)
            return refresh(*regions, **options)

        monkeypatch.setattr(canvas, "refresh", seen)
        screen.app.main.heard(snapshot(40))
        assert drawn == []
        told = snapshot(40)
        told["backends"][5]["engine"]["running"] = 77
        told["proxy"]["open_requests"] = 42
        screen.app.main.heard(told)
        # The totals, the row, and the line of the proxy.
        assert [region.height for region in drawn] == [1, 1, 1]
