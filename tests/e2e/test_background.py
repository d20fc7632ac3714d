"""Responses that are made in the background keep their places until they are over."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson
import pytest

from tests.e2e.process import Penstock, Serve
from tests.e2e.raw_backend import RawBackend, Script, answer

BODY = {"model": "sim-model", "input": "A long story.", "background": True}


class Made:
    """What a backend tells of its responses: each is `in_progress` until it is said to be over."""

    def __init__(self) -> None:
        self.count = 0
        self.status = "in_progress"

    def __call__(self, request: bytes) -> Script:
        if request.startswith(b"POST"):
            self.count += 1
            return (answer(self._told(f"resp_{self.count}", "queued")),)
        number = request.split(b"/v1/responses/")[1].split(b" ")[0].decode()
        return (answer(self._told(number, self.status)),)

    def _told(self, name: str, status: str) -> bytes:
        return orjson.dumps({"id": name, "object": "response", "status": status, "output": []})


@pytest.fixture
async def backend() -> AsyncIterator[tuple[RawBackend, Made]]:
    raw, made = RawBackend(), Made()
    raw.always = made
    await raw.start()
    yield raw, made
    await raw.stop()


async def begin(session: aiohttp.ClientSession, penstock: Penstock) -> dict[str, Any]:
    async with session.post(f"{penstock.url}/v1/responses", json=BODY) as told:
        assert told.status == 200
        return dict(await told.json())


async def look(session: aiohttp.ClientSession, penstock: Penstock, name: str) -> str:
    async with session.get(f"{penstock.url}/v1/responses/{name}") as told:
        return str((await told.json())["status"])


async def test_another_one_waits_until_the_first_is_over(
    backend: tuple[RawBackend, Made], serve: Serve
) -> None:
    raw, made = backend
    penstock = await serve([raw], pool={"max_requests": 1})
    async with aiohttp.ClientSession() as session:
        first = await begin(session, penstock)
        second = asyncio.create_task(begin(session, penstock))
        for _ in range(3):
            assert await look(session, penstock, first["id"]) == "in_progress"
            await asyncio.sleep(0.1)
        assert not second.done()
        assert made.count == 1
        made.status = "completed"
        assert await look(session, penstock, first["id"]) == "completed"
        async with asyncio.timeout(5.0):
            told = await second
        assert await look(session, penstock, told["id"]) == "completed"
        assert made.count == 2


async def test_one_that_nobody_asks_for_keeps_its_place_as_long_as_its_answer_may_take(
    backend: tuple[RawBackend, Made], serve: Serve
) -> None:
    raw, made = backend
    penstock = await serve([raw], at_rest=False, pool={"max_requests": 1})
    async with aiohttp.ClientSession() as session, asyncio.timeout(10.0):
        body = BODY | {"max_output_tokens": 20}
        async with session.post(f"{penstock.url}/v1/responses", json=body) as told:
            assert told.status == 200
        await begin(session, penstock)
    assert made.count == 2
