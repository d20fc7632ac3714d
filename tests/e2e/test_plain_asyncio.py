"""Without uvloop the proxy runs on plain asyncio, and says so."""

import asyncio
from pathlib import Path

import aiohttp

from tests.e2e.process import Penstock, Serve, Simulate

BODY = {"model": "sim-model", "prompt": "Once upon a time", "max_tokens": 20, "stream": True}


async def without_uvloop(serve: Serve, simulate: Simulate, tmp_path: Path) -> Penstock:
    (tmp_path / "uvloop.py").write_text("raise ImportError")
    return await serve(await simulate(2), modules=tmp_path)


async def test_streams_on_plain_asyncio(serve: Serve, simulate: Simulate, tmp_path: Path) -> None:
    penstock = await without_uvloop(serve, simulate, tmp_path)
    assert any(b"uvloop is missing" in line for line in penstock.log)

    async def one(session: aiohttp.ClientSession) -> bytes:
        async with session.post(penstock.url + "/v1/completions", json=BODY) as answer:
            return await answer.read()

    async with aiohttp.ClientSession() as session:
        answers = await asyncio.gather(*(one(session) for _ in range(30)))
    assert all(body.endswith(b"data: [DONE]\n\n") for body in answers)
    assert len({body.count(b"\n\n") for body in answers}) == 1


async def test_a_client_that_leaves_is_noticed_on_plain_asyncio(
    serve: Serve, simulate: Simulate, tmp_path: Path
) -> None:
    penstock = await without_uvloop(serve, simulate, tmp_path)
    async with aiohttp.ClientSession() as session:
        body = BODY | {"max_tokens": 100_000}
        answer = await session.post(penstock.url + "/v1/completions", json=body)
        await answer.content.readany()
        answer.close()
    await penstock.until_at_rest()
