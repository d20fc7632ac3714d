"""A tokenizer of the configuration: prompts are counted exactly, and `check` reads its file."""

import asyncio
import base64
import re
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.forked import run
from tests.e2e.process import Serve, Simulate
from tests.e2e.request import ask


async def test_prompts_are_counted_exactly_while_streams_go_on(
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


async def test_check_reads_the_tokenizer(tmp_path: Path) -> None:
    config = tmp_path / "penstock.yaml"
    for content, said in ((None, "cannot be read"), (b"no ranks", "is not a tiktoken ranks file")):
        if content is not None:
            (tmp_path / "ranks").write_bytes(content)
        config.write_text(
            "pools: [{name: p, backends: [{name: b, url: 'http://127.0.0.1:1'}]}]\n"
            "tokens:\n  estimator: tiktoken\n  file: ranks\n"
        )
        told = await run("check", str(config))
        assert told.status == 2
        assert told.err.startswith(f"{config}:4: tokens.file: ")
        assert said in told.err
    (tmp_path / "ranks").write_bytes(ranks())
    assert (await run("check", str(config))).status == 0


def ranks(*merges: bytes) -> bytes:
    """A ranks file of tiktoken: every byte, then these."""
    tokens = [bytes([byte]) for byte in range(256)] + list(merges)
    lines = [b"%b %d" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens)]
    return b"\n".join(lines)
