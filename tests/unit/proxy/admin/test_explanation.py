"""The bodies that are explained: as large as requests may be, and counted with their bodies."""

import asyncio
from typing import Any
from unittest.mock import Mock

import orjson
import pytest
from aiohttp.streams import StreamReader
from aiohttp.test_utils import make_mocked_request
from aiohttp.web import Response

from penstock.proxy.admin.explanation import Explanation
from penstock.proxy.data.memory import Memory
from tests.unit.proxy.data.test_waiting_bodies import plane

MIB = 2**20
BODY = b'{"prompt": "x"}'
TURNS = 5


class Play:
    """A port that explains, and a data plane whose bodies have `room_bytes` together."""

    def __init__(self, room_bytes: int, memory: Memory | None = None) -> None:
        limits = {"body_bytes": min(32 * MIB, room_bytes), "bodies_bytes": room_bytes}
        self.plane = plane(lambda: 1_000.0, memory, limits=limits)
        self.explanation = Explanation(self.plane)

    def asks(self, length: int | None = None) -> tuple[StreamReader, asyncio.Task[Response]]:
        """A request, of which no byte of the body has come."""
        protocol = Mock(_reading_paused=False)
        body = StreamReader(protocol, 2**16, loop=self.plane.loop)
        headers = {} if length is None else {"content-length": str(length)}
        request = make_mocked_request("POST", "/api/v1/explain", headers, payload=body)
        return body, self.plane.loop.create_task(self.explanation.answer(request))

    def short_of_memory(self) -> None:
        self.plane.overload.observe(1_000.0, 0.25, 0.0, 0.0, 95, 100)


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def told(answer: Response) -> tuple[int, Any]:
    assert isinstance(answer.body, bytes)
    return answer.status, orjson.loads(answer.body).get("error", {}).get("code")


async def test_a_body_is_as_large_as_the_memory_leaves_for_one() -> None:
    """By its declared length, or once more has come."""
    play = Play(1024 * MIB, Memory(192 * MIB, 60 * MIB))
    assert play.plane.body_bytes_max < 24 * MIB
    _, answer = play.asks(32 * MIB)
    assert told(await answer) == (413, "body_too_large")
    body, answer = play.asks()
    for _ in range(24):
        body.feed_data(b" " * MIB)
        await turns()
    assert told(await answer) == (413, "body_too_large")
    assert play.plane.bodies.held_bytes == 0


async def test_it_is_counted_from_its_first_byte_to_its_answer() -> None:
    play = Play(MIB)
    body, answer = play.asks(len(BODY))
    for byte in BODY:
        assert not answer.done()
        body.feed_data(bytes([byte]))
        await turns()
    assert play.plane.bodies.held_bytes == len(BODY)
    body.feed_eof()
    assert told(await answer) == (200, None)
    assert play.plane.bodies.held_bytes == 0


@pytest.mark.parametrize("length", [None, 150_000])
async def test_it_leaves_the_room_that_requests_have_or_may_need(length: int | None) -> None:
    """A quarter of what it has stays free beside it, as one client leaves it to the next."""
    play = Play(1_000_000)
    play.plane.bodies.held_bytes = 820_000
    body, answer = play.asks(length)
    await turns()
    for _ in range(3):
        body.feed_data(b" " * 50_000)
        await turns()
    got = await answer
    assert told(got) == (429, "overloaded")
    assert got.headers["retry-after"] == "1"
    assert play.plane.bodies.held_bytes == 820_000


async def test_slow_bodies_leave_four_fifths_of_the_room_to_requests() -> None:
    play = Play(1_000_000)
    _, answer = play.asks(200_001)
    assert told(await answer) == (413, "body_too_large")
    body, answer = play.asks(200_000)
    for _ in range(4):
        body.feed_data(b" " * 50_000)
        await turns()
    assert play.plane.bodies.held_bytes == 200_000
    body.feed_data(b" ")
    assert told(await answer) == (413, "body_too_large")
    assert play.plane.bodies.held_bytes == 0


async def test_one_at_a_time() -> None:
    play = Play(MIB)
    body, first = play.asks()
    await turns()
    _, second = play.asks()
    got = await second
    assert told(got) == (429, "overloaded")
    assert int(got.headers["retry-after"]) >= 1
    body.feed_data(BODY)
    body.feed_eof()
    assert told(await first) == (200, None)


async def test_none_while_memory_is_short() -> None:
    """What has come of one is given up too."""
    play = Play(MIB)
    body, half = play.asks()
    body.feed_data(BODY)
    await turns()
    play.short_of_memory()
    body.feed_data(b" ")
    _, another = play.asks(len(BODY))
    for answer in (half, another):
        got = await answer
        assert told(got) == (429, "overloaded")
        assert got.headers["retry-after"] == "2"
        assert isinstance(got.body, bytes)
        assert b"Memory is short" in got.body
        await turns()
    assert play.plane.bodies.held_bytes == 0
