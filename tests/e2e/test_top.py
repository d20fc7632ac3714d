"""`penstock top` in a real terminal, in front of a real process."""

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from aiohttp import web

from penstock.proxy.commands.top import feed as feed_module
from penstock.proxy.commands.top.feed import Feed, Link, wait_s
from tests.e2e.process import Penstock, Serve, Simulate, until
from tests.e2e.terminal import TMUX, Terminal
from tests.e2e.test_commands import stream

pytestmark = [pytest.mark.once, pytest.mark.timeout(120)]

Open = Callable[..., Awaitable[Terminal]]
SMALL: Final = (80, 24)
LARGE: Final = (200, 60)


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Open]:
    """Open a terminal with `penstock top` in it: `await opened(penstock, SMALL)`."""
    if TMUX is None:
        pytest.skip("no tmux: penstock top is tried in no terminal")
    started: list[Terminal] = []

    async def start(penstock: Penstock, size: tuple[int, int], **variables: str) -> Terminal:
        terminal = Terminal(tmp_path)
        command = (sys.executable, "-m", "penstock.proxy", "top", "--admin", penstock.admin_url)
        await terminal.start(*command, width=size[0], height=size[1], **variables)
        started.append(terminal)
        return terminal

    yield start
    for terminal in started:
        await terminal.stop()


def is_live(text: str) -> bool:
    """Whether the line of the proxy says so, which is the last but one."""
    return any(line.endswith("  live") for line in text.rstrip().split("\n")[-2:-1])


def is_wide(text: str) -> bool:
    return is_live(text) and "Since" in text and "IN FLIGHT" in text


def is_narrow(text: str) -> bool:
    return is_live(text) and "Since" in text and "IN FLIGHT" not in text


def rows(text: str) -> list[str]:
    return re.findall(r"^[> ][!~ -](gpu-\d+|b\d+) ", text, re.M)


async def test_top_shows_the_fleet(simulate: Simulate, serve: Serve, opened: Open) -> None:
    penstock = await serve(await simulate(3), slo=[{"ttft_s": {"p95": 1}}])
    for _ in range(3):
        await stream(penstock, 8)
    terminal = await opened(penstock, SMALL)
    for width, height in (SMALL, LARGE):
        await terminal.resize(width, height)
        text = await terminal.until(is_wide if width == LARGE[0] else is_narrow)
        lines = text.split("\n")
        assert lines[0].startswith("default: nothing is wrong.  Since ")
        assert re.search(r"^SLO  all ttft p95 <= 1.00s: ok", text, re.M)
        assert re.search(r"tokens/s .* run \S+  wait \S+", text)
        assert sorted(rows(text)) == ["b0", "b1", "b2"]
        assert len(re.findall(r"\d\d:\d\d:\d\d 200 .* sim-model ", text)) == 3
        assert max(map(len, lines)) <= width


async def test_keys_reach_the_proxy(simulate: Simulate, serve: Serve, opened: Open) -> None:
    penstock = await serve(await simulate(3))
    await stream(penstock, 8)
    terminal = await opened(penstock, SMALL)
    await terminal.until(is_live)
    await terminal.press("s", "i")
    await terminal.until(lambda text: rows(text) == ["b2", "b1", "b0"])
    await terminal.press("Tab", "Enter")
    text = await terminal.until(lambda text: "queue and prefill at b" in text)
    assert re.search(r"^tokens of b\d +\d\.\d{3} s ", text, re.M)
    await terminal.press("Escape")
    await terminal.until(is_live)
    await terminal.press("Tab", "/", "b", "1", "Enter", "d")  # as fast as it can
    await terminal.until(lambda text: "y drain b1" in text)
    await terminal.press("y")
    await terminal.until(lambda text: re.search(r"^>-b1 +drain", text, re.M) is not None)
    states = [each["admin_state"] for each in await penstock.backends()]
    assert states == ["ready", "drain", "ready"]
    await terminal.press("r")
    await terminal.until(lambda text: "y ready b1" in text)
    await terminal.press("y")
    await terminal.until(lambda text: re.search(r"^>.b1 +ready", text, re.M) is not None)
    await terminal.press("q")
    text = await terminal.until(lambda text: "exit status" in text)
    assert "exit status 0" in text
    assert "tokens/s" not in text  # the screen is as it was before


async def test_every_end_restores_the_screen(
    simulate: Simulate, serve: Serve, opened: Open
) -> None:
    penstock = await serve(await simulate(1))
    for end, status in (("q", 0), ("C-c", 130), (signal.SIGTERM, 0)):
        terminal = await opened(penstock, SMALL)
        await terminal.until(is_live)
        if isinstance(end, str):
            await terminal.press(end)
        else:
            await terminal.signal(end)
        text = await terminal.until(lambda text: "exit status" in text)
        assert text.strip() == f"exit status {status}"


async def test_readers_cannot_drain(simulate: Simulate, serve: Serve, opened: Open) -> None:
    admin = {"host": "127.0.0.1", "port": 0, "token": "a" * 32, "view_token": "v" * 32}
    penstock = await serve(await simulate(2), admin=admin)
    terminal = await opened(penstock, SMALL, PENSTOCK_ADMIN__TOKEN="v" * 32)
    await terminal.until(is_live)
    await terminal.press("d")
    await terminal.until(lambda text: "y drain b0" in text)
    await terminal.press("y")
    await terminal.until(lambda text: "Not done: " in text)
    assert [each["admin_state"] for each in await penstock.backends()] == ["ready", "ready"]
    without = await opened(penstock, SMALL)
    text = await without.until(lambda text: "exit status 1" in text)
    assert "--token-file" in text.replace("\n", "")


async def test_a_lost_proxy_is_found_again(simulate: Simulate, serve: Serve, opened: Open) -> None:
    servers = await simulate(2)
    penstock = await serve(servers, admin={"host": "127.0.0.1", "port": 0})
    terminal = await opened(penstock, SMALL)
    await terminal.until(is_live)
    await penstock.stop()
    text = await terminal.until(lambda text: text.startswith("! No news since "))
    assert len(rows(text)) == 2
    assert "OLD FIGURES" in text
    await serve(servers, admin={"host": "127.0.0.1", "port": penstock.admin_port})
    await terminal.until(lambda text: is_live(text) and "No news" not in text)


async def test_colours_are_never_the_only_sign(
    simulate: Simulate, serve: Serve, opened: Open
) -> None:
    penstock = await serve([*await simulate(1), "http://127.0.0.1:9"], ready=1)
    terminal = await opened(penstock, SMALL, NO_COLOR="1")
    await terminal.until(lambda text: re.search(r"^>!b1 +starting", text, re.M) is not None)
    coloured = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7])(?:;\d+)*m")
    assert not coloured.search(await terminal.text(escapes=True))
    other = await opened(penstock, SMALL)
    await other.until(lambda text: re.search(r"^>!b1 +starting", text, re.M) is not None)
    assert coloured.search(await other.text(escapes=True))


async def test_a_larger_window_shows_more_and_writes_little_while_nothing_changes(
    simulate: Simulate, serve: Serve, opened: Open
) -> None:
    (server,) = await simulate()
    # They are one server: how they are listed is what counts.
    backends = [{"name": f"gpu-{number}", "url": server.url} for number in range(50)]
    config: dict[str, Any] = {"pool": {"backends": backends}, "ready": 50, "at_rest": False}
    penstock = await serve([server], health={"interval_s": 5, "timeout_s": 4}, **config)
    terminal = await opened(penstock, SMALL)
    await terminal.until(lambda text: "of 50 can serve; rows 1 to " in text)
    await terminal.resize(*LARGE)
    await terminal.until(lambda text: "50 of 50 can serve" in text and len(rows(text)) >= 25)
    await asyncio.sleep(1.0)
    per_s = await terminal.bytes_written(3.0) / 3.0
    print(f"{per_s:.0f} bytes a second")
    assert 0 < per_s < LARGE[0] * LARGE[1] / 2


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
WITHIN_S = 10.0


class Looker:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.snapshots: list[Mapping[str, Any]] = []

    def heard(self, snapshot: Mapping[str, Any]) -> None:
        self.snapshots.append(snapshot)

    def became(self, link: Link) -> None:
        self.links.append(link)

    async def until(self, holds: Callable[[], bool]) -> None:
        await until(lambda: holds(), WITHIN_S)


@asynccontextmanager
async def looking(answer: Answer) -> AsyncIterator[Looker]:
    """Somebody who looks at a port that gives this answer."""
    application = web.Application()
    application.add_routes([web.get("/{path:.*}", answer)])
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    (address,) = runner.addresses
    looker = Looker()
    now = iter(range(100, 10_000))
    feed = Feed(f"http://127.0.0.1:{address[1]}", {}, lambda: float(next(now)), Random(1))
    reading = asyncio.create_task(feed.run(looker))
    try:
        yield looker
    finally:
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
        await runner.cleanup()


async def sent(request: web.Request, *pieces: bytes) -> web.StreamResponse:
    stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await stream.prepare(request)
    for piece in pieces:
        await stream.write(piece)
        await asyncio.sleep(0.02)
    return stream


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (401, "{}", "The admin token is wrong or missing (--token-file)."),
        (503, '{"error": {"message": "Too many look."}}', "Too many look."),
        (404, "<html>", "The answer is 404, and not a stream of penstock."),
        (200, "<html>\n\n", "The stream ended."),
        (200, "data: <html>\n\n", "This is no stream of penstock."),
    ],
)
async def test_answers_that_are_no_stream(status: int, body: str, says: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, text=body)

    async with looking(answer) as looker:
        await looker.until(lambda: bool(looker.links))
        assert looker.links[0] == Link("lost", 100.0, says)
        assert not looker.snapshots


async def test_a_stream_that_ends_is_read_again() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await sent(request, b'data: {"at"', b": 1}\n", b"\n", b'data: {"at": 2}\n\n')

    async with looking(answer) as looker:
        await looker.until(lambda: len(looker.snapshots) >= 4)
        states = [each.state for each in looker.links]
        assert states[:5] == ["live", "live", "lost", "live", "live"]
        assert [each["at"] for each in looker.snapshots[:4]] == [1, 2, 1, 2]
        assert looker.links[2] == Link("lost", 102.0, "The stream ended.")  # 101 was the first news


async def test_a_silent_stream_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "SILENT_S", 0.2)

    async def answer(request: web.Request) -> web.StreamResponse:
        stream = await sent(request, b'data: {"at": 1}\n\n')
        await asyncio.sleep(WITHIN_S)
        return stream

    async with looking(answer) as looker:
        await looker.until(lambda: looker.links[-1:] != [] and looker.links[-1].state == "lost")
        assert looker.links[-1].why.startswith("Nothing came for ")


async def test_redirects_get_no_token() -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        raise web.HTTPFound("/elsewhere")

    async with looking(answer) as looker:
        await looker.until(lambda: bool(looker.links))
    assert set(asked) == {"/api/v1/events"}


def test_waits_are_between_one_and_twenty_seconds() -> None:
    waits = [[wait_s(failures, Random(seed)) for seed in range(50)] for failures in range(9)]
    assert 0.75 <= min(waits[0]) < max(waits[0]) <= 1.25
    assert [round(sum(each) / 50) for each in waits] == [1, 2, 4, 8, 15, 15, 15, 15, 15]
    assert max(waits[8]) <= 18.75
