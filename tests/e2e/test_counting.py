"""Clients that leave while a thread counts their prompt; and one whose prompt is not counted."""

import asyncio
import base64
from pathlib import Path

import aiohttp
import orjson

from penstock.proxy.data.counting import BODY_BYTES_MAX, QUEUED_BYTES_MAX
from tests.e2e.process import Serve, Simulate
from tests.e2e.wire import Client, request

BYTES = [b"%b %d" % (base64.b64encode(bytes([byte])), byte) for byte in range(256)]
TOKENS = {"estimator": "tiktoken", "file": "ranks"}


async def test_who_leaves_while_counted_reaches_no_backend(
    simulate: Simulate, serve: Serve, tmp_path: Path
) -> None:
    """It leaves while its prompt waits behind three others: a quarter of a second."""
    (tmp_path / "ranks").write_bytes(b"\n".join(BYTES))
    (server,) = await simulate()
    penstock = await serve([server], tokens=TOKENS)
    prompt = "ab" * 120_000  # one word: the slowest there is to cut
    asked = {"model": "sim-model", "prompt": prompt, "max_tokens": 1}
    body = orjson.dumps(asked | {"truncate_prompt_tokens": -1})  # it would be refused as too long
    assert len(body) < BODY_BYTES_MAX
    assert 4 * len(body) < QUEUED_BYTES_MAX
    others = [await Client.open(penstock, request(body=body)) for _ in range(3)]
    reader, writer = await asyncio.open_connection("127.0.0.1", penstock.port)
    writer.write(request(body=body))
    writer.write_eof()
    async with asyncio.timeout(10):
        assert await reader.read() == b""
        writer.close()
        assert [(await each.answer()).status for each in others] == [200] * 3
        while len(penstock.access_lines) < 4:
            await asyncio.sleep(0.01)
    for each in others:
        each.close()
    left = [line["backend"] for line in penstock.access_lines if line["status"] == 499]
    assert left == [None]
    # What it had waited for is counted no more, and its place is free.
    async with aiohttp.ClientSession() as session:
        short = {"model": "sim-model", "prompt": "ab", "max_tokens": 1}
        async with session.post(f"{penstock.url}/v1/completions", json=short) as answer:
            assert answer.status == 200
    assert (await penstock.backends())[0]["requests_total"] == 4
    assert 'client_aborts_total{phase="queued"} 1.0' in await penstock.metrics()


async def test_what_is_too_large_to_be_counted_is_estimated(
    simulate: Simulate, serve: Serve, tmp_path: Path
) -> None:
    (tmp_path / "ranks").write_bytes(b"\n".join(BYTES))
    (server,) = await simulate()
    penstock = await serve([server], tokens=TOKENS)
    body = {"model": "sim-model", "prompt": "two words " * 26_500, "max_tokens": 1}
    assert len(orjson.dumps(body)) > BODY_BYTES_MAX
    client = await Client.open(penstock, request(body=orjson.dumps(body)))
    assert (await client.answer()).status == 200
    client.close()
