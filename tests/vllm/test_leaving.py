"""A client that leaves frees the engine, by vLLM's own figures.

Nothing runs and nothing waits, and far fewer tokens were made than were asked for.
"""

import asyncio
from random import Random

import aiohttp
import pytest

from tests.e2e.process import Penstock
from tests.vllm.server import MODEL, VllmServer

WITHIN_S = 60.0
LONG_TOKENS = 16_000
LONG = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": LONG_TOKENS, "ignore_eos": True}
# Prompts in token ids, no two alike: a second and more of prefill on a CPU.
PREFILL = {**LONG, "max_tokens": 16}
# A server that computes answers late whether it does, on a loaded machine when it is over.
TRIES = 5
PROMPTS, PROMPT_TOKENS = 40, 3_900


async def busy(servers: list[VllmServer]) -> float:
    return sum([await asyncio.to_thread(each.busy) for each in servers])


async def generated(servers: list[VllmServer]) -> float:
    name = "vllm:generation_tokens_total"
    return sum([await asyncio.to_thread(each.gauge, name) for each in servers])


async def until_busy(servers: list[VllmServer]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not await busy(servers):
            await asyncio.sleep(0.01)


async def until_free(servers: list[VllmServer]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while await busy(servers):
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_in_prefill(
    penstock: Penstock, servers: list[VllmServer], stream: bool
) -> None:
    rng = Random(stream)
    async with aiohttp.ClientSession() as session:
        for _ in range(TRIES):
            ids = [
                [rng.randrange(100, 4_000) for _ in range(PROMPT_TOKENS)] for _ in range(PROMPTS)
            ]
            body = PREFILL | {"prompt": ids, "stream": stream}
            asking = asyncio.create_task(session.post(f"{penstock.url}/v1/completions", json=body))
            await until_busy(servers)
            listing = await penstock.backends()
            await leave(asking)
            await until_free(servers)
            if any(each["queued_prefill_tokens"] for each in listing):
                break
        else:
            pytest.fail("it was never seen in prefill")
    await penstock.until_at_rest()


async def leave(asking: asyncio.Task[aiohttp.ClientResponse]) -> None:
    """Close the connection, before the answer's head or after it."""
    asking.cancel()
    (answer,) = await asyncio.gather(asking, return_exceptions=True)
    if isinstance(answer, aiohttp.ClientResponse):
        answer.close()


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_in_decode(
    penstock: Penstock, servers: list[VllmServer], stream: bool
) -> None:
    before = await generated(servers)
    async with aiohttp.ClientSession() as session:
        url, body = f"{penstock.url}/v1/completions", LONG | {"stream": stream}
        if stream:
            answer = await session.post(url, json=body)
            # The server is too busy with a stream to be asked whether it is busy.
            assert (await answer.content.readline()).startswith(b"data: {")
            answer.close()
        else:
            asking = asyncio.create_task(session.post(url, json=body))
            await until_busy(servers)
            while await generated(servers) == before:  # still in prefill
                await asyncio.sleep(0.05)
            assert not asking.done()
            await leave(asking)
        await until_free(servers)
    assert 0 < await generated(servers) - before < LONG_TOKENS
    await penstock.until_at_rest()
