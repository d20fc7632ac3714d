"""Streams and plain answers through a real process: the same bytes that a direct client gets."""

import asyncio
from typing import Any

import aiohttp
import orjson
import pytest
from tests.e2e.process import Serve, Simulate

CHAT = {"model": "sim-model", "messages": [{"role": "user", "content": "Tell me of rivers."}]}
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/completions", {"model": "sim-model", "prompt": "Once upon a time"}),
    ("/v1/responses", {"model": "sim-model", "input": "Tell me of rivers."}),
    ("/v1/messages", CHAT | {"max_tokens": 20}),
]
every_dialect = pytest.mark.parametrize(("path", "body"), BODIES, ids=[path for path, _ in BODIES])


async def test_nothing(serve: Serve, simulate: Simulate) -> None:
    penstock = await serve(await simulate(2))
    async with aiohttp.ClientSession() as session:
        async with session.get(penstock.url + "/health") as answer:
            assert answer.status == 200
    await asyncio.sleep(0)
    assert orjson.loads(b"{}") == {}
