"""Exact token counts by a tokenizer of the configuration."""

import asyncio
import base64
import re
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from penstock.proxy.data.counting import BODY_BYTES_MAX, QUEUED_BYTES_MAX
from tests.e2e.process import Fleet, Serve, Simulate, pool_of
from tests.e2e.request import ask
from tests.e2e.traffic import Traffic
from tests.e2e.wire import Client, request


async def test_prompts_are_counted_exactly(
    simulate: Simulate, serve: Serve, tmp_path: Path
) -> None:
    """The simulated server counts four bytes a token; so does a vocabulary of one merge each."""
    (tmp_path / "ranks").write_bytes(ranks(b"ab", b"abab"))
    (server,) = await simulate(profile="steady-50")
    tokens = {"estimator": "tiktoken", "file": "ranks"}
    penstock = await serve([server], tokens=tokens)
    streamed = {"model": "sim-model", "prompt": "hello", "max_tokens": 40, "stream": True}
    running = asyncio.create_task(ask(penstock, "/v1/completions", streamed))
    body = {"model": "sim-model", "prompt": "abab" * 700, "max_tokens": 1}
    async with aiohttp.ClientSession() as session:
        for _ in range(5):
            async with session.post(f"{penstock.url}/v1/completions", json=body) as answer:
                usage = (await answer.json())["usage"]
                assert usage["prompt_tokens"] == 700
        # One that leaves while it is counted, or right after.
        with pytest.raises(asyncio.TimeoutError):
            async with session.post(
                f"{penstock.url}/v1/completions",
                json=body | {"max_tokens": 5_000, "prompt": "abab" * 20_000},
                timeout=aiohttp.ClientTimeout(total=0.05),
            ):
                pass
    assert b"[DONE]" in (await running).body
    metrics = await penstock.metrics()
    within = re.search(r'token_estimate_error_ratio_bucket\{le="0.95"\} (\S+)', metrics)
    assert within is not None
    assert float(within[1]) <= 1  # the first of the other prompt, whose template is not known


def ranks(*merges: bytes) -> bytes:
    """A ranks file of tiktoken: every byte, then these."""
    tokens = [bytes([byte]) for byte in range(256)] + list(merges)
    lines = [b"%b %d" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens)]
    return b"\n".join(lines)


TOKENS = {"estimator": "tiktoken", "file": "ranks"}


async def test_leaving_while_counted_reaches_no_backend(fleet: Fleet, tmp_path: Path) -> None:
    """It leaves while its prompt waits behind three others: a quarter of a second."""
    (tmp_path / "ranks").write_bytes(ranks())
    _, penstock = await fleet(tokens=TOKENS)
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


async def test_prompts_are_counted_before_routing(
    simulate: Simulate, serve: Serve, tmp_path: Path
) -> None:
    """Each byte is a token: four times as many as is estimated."""
    (tmp_path / "ranks").write_bytes(ranks())
    servers = await simulate(2)
    pools = [pool_of(name, {name: to}) for name, to in zip(("chat", "long"), servers, strict=True)]
    routes: list[dict[str, Any]] = [
        {"name": "l", "match": {"prompt_tokens": {"min": 2_000}}, "to": [{"pool": "long"}]},
        {"name": "c", "to": [{"pool": "chat"}]},
    ]
    body = {"model": "sim-model", "prompt": "word " * 600, "max_tokens": 1}
    for tokens, wanted in (({}, "chat"), ({"estimator": "tiktoken", "file": "ranks"}, "long")):
        penstock = await serve(servers, pools=pools, routes=routes, tokens=tokens)
        got = await ask(penstock, "/v1/completions", body)
        assert (got.status, got.headers["x-penstock-backend"]) == (200, wanted)


async def test_a_tokenizer_comes_and_goes_under_load(fleet: Fleet, tmp_path: Path) -> None:
    """What the former one has still to count is counted."""
    (tmp_path / "ranks").write_bytes(ranks())
    _, penstock = await fleet(2)
    async with Traffic(penstock.url) as traffic:
        for tokens in (TOKENS, {"estimator": "bytes"}, TOKENS, TOKENS | {"encoding": "o200k_base"}):
            await traffic.until(traffic.whole + 50)
            status, said = await penstock.reload(tokens=tokens)
            assert status == 200, said
        await traffic.until(traffic.whole + 50)
    assert not traffic.failed
