"""How `penstock top` reads the stream: what it says of answers that are none, and its return."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import pytest
from aiohttp import web

from penstock.proxy.commands.top import feed as feed_module
from penstock.proxy.commands.top.feed import Feed, Link, wait_s

pytestmark = [pytest.mark.once]

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
        async with asyncio.timeout(WITHIN_S):
            while not holds():
                await asyncio.sleep(0.01)


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
        (302, "[]", "The answer is 302, and not a stream of penstock."),
        (200, "<html>\n\n", "The stream ended."),
        (200, "data: <html>\n\n", "This is no stream of penstock."),
    ],
)
async def test_an_answer_that_is_no_stream_is_told(status: int, body: str, says: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, text=body)

    async with looking(answer) as looker:
        await looker.until(lambda: bool(looker.links))
        assert looker.links[0] == Link("lost", 100.0, says)
        assert not looker.snapshots


async def test_a_stream_that_ends_is_read_again_and_the_time_is_that_of_the_last_news() -> None:
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


async def test_an_event_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "EVENT_BYTES_MAX", 100)

    async def answer(request: web.Request) -> web.StreamResponse:
        return await sent(request, b"data: " + b"x" * 300)

    async with looking(answer) as looker:
        await looker.until(lambda: bool(looker.links))
        assert looker.links[0].why == "This is no stream of penstock."


async def test_the_token_is_not_sent_elsewhere() -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        raise web.HTTPFound("/elsewhere")

    async with looking(answer) as looker:
        await looker.until(lambda: bool(looker.links))
    assert set(asked) == {"/api/v1/events"}


async def test_it_tries_again_later_and_later() -> None:
    tried: list[float] = []

    async def answer(request: web.Request) -> web.Response:
        tried.append(asyncio.get_running_loop().time())
        return web.Response(status=503)

    async with looking(answer) as looker:
        await looker.until(lambda: len(tried) == 3)
    assert tried[1] - tried[0] > 0.7
    assert tried[2] - tried[1] > 1.4


def test_a_wait_is_between_a_second_and_twenty() -> None:
    waits = [[wait_s(failures, Random(seed)) for seed in range(50)] for failures in range(9)]
    assert 0.75 <= min(waits[0]) < max(waits[0]) <= 1.25
    assert [round(sum(each) / 50) for each in waits] == [1, 2, 4, 8, 15, 15, 15, 15, 15]
    assert max(waits[8]) <= 18.75
