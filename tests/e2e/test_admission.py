"""Requests that wait before busy engines, and answers that are shortened meanwhile."""

import asyncio
from typing import Any

import anthropic
import openai
import pytest

from penstock.bench.sim.server import SimServer
from tests.e2e.process import Fleet, Penstock, Serve, Simulate
from tests.e2e.request import CHAT, Got, ask

TRUSTS = {"enabled": True, "trust_clients": True}
# Some 6,000 tokens: a tenth of a second of this engine's prefill is far less.
LONG: list[dict[str, str]] = [{"role": "user", "content": "all work and no play " * 1_150}]
PROFILE = "8b-1xa100"


async def until_waiting(penstock: Penstock, count: int) -> None:
    async with asyncio.timeout(10):
        while await waiting(penstock) != count:
            await asyncio.sleep(0.05)


async def waiting(penstock: Penstock) -> int:
    return sum(each["requests"] for each in (await penstock.admin("queue"))["classes"])


async def stream(penstock: Penstock, number: int, model: str = "sim-model", **headers: str) -> Got:
    """A long prompt of its own: nothing of it is cached."""
    return await ask(penstock, "/v1/chat/completions", long_body(number, model), **headers)


async def longer(penstock: Penstock, number: int) -> Got:
    """One with a prompt three times as long."""
    return await ask(penstock, "/v1/chat/completions", long_body(number, times=3))


def long_body(number: int, model: str = "sim-model", *, times: int = 1) -> dict[str, Any]:
    content = f"{number} " + times * LONG[0]["content"]
    messages = [{"role": "user", "content": content}]
    return CHAT | {"model": model, "messages": messages, "stream": True}


def engine_queue(server: SimServer) -> int:
    return server.engine.waiting


async def test_requests_wait_in_the_proxy(fleet: Fleet) -> None:
    servers, penstock = await fleet(2, profile=PROFILE, admission=TRUSTS)
    answers = [asyncio.create_task(stream(penstock, number)) for number in range(24)]
    longest = 0
    while not all(answer.done() for answer in answers):
        longest = max(longest, *map(engine_queue, servers))
        await asyncio.sleep(0.01)
    assert {(await answer).status for answer in answers} == {200}
    assert longest <= 2  # one that is computed, and one beforehand
    assert await waiting(penstock) == 0
    metrics = await penstock.metrics()
    assert 'penstock_queue_wait_seconds_count{priority="standard"}' in metrics
    assert 'penstock_queued_requests{priority="standard"} 0.0' in metrics


async def test_sdks_come_back_when_told(simulate: Simulate, serve: Serve) -> None:
    """They try again after Retry-After, and get their answers."""
    servers = await simulate(1, profile=PROFILE)
    classes = [{"name": "standard", "max_wait_s": 1.5}]
    penstock = await serve(servers, admission={"enabled": True, "classes": classes})
    options: Any = {"api_key": "k", "max_retries": 2, "timeout": 30}
    async with (
        openai.AsyncOpenAI(base_url=penstock.url + "/v1", **options) as gpt,
        anthropic.AsyncAnthropic(base_url=penstock.url, **options) as anthropic_client,
    ):
        crowd = [asyncio.create_task(longer(penstock, number)) for number in range(4)]
        await asyncio.sleep(0.2)
        messages: Any = LONG
        one = gpt.chat.completions.create(model="sim-model", messages=messages, max_tokens=3)
        two = anthropic_client.messages.create(model="sim-model", messages=messages, max_tokens=3)
        await asyncio.gather(one, two)
        await asyncio.gather(*crowd)
    refusals = [line for line in penstock.access_lines if line["error"] == "overloaded"]
    assert any(line["stream"] is False for line in refusals)  # one of the SDKs', tried again


async def test_prompts_far_over_the_context_are_refused(fleet: Fleet) -> None:
    (server,), penstock = await fleet(1)
    async with openai.AsyncOpenAI(base_url=f"{penstock.url}/v1", api_key="k") as client:
        with pytest.raises(openai.BadRequestError) as raised:
            await client.completions.create(model="sim-model", prompt="word " * 700_000)
    assert raised.value.code == "context_length_exceeded"
    assert "131072" in str(raised.value)
    assert not [each for each in server.seen if b"word word" in each.body]


# Some 6,000 tokens: a tenth of a second of this engine's prefill is far less.
# The pressure of a step that is in force whenever requests wait.
LEAST = 0.001
SHORT: dict[str, Any] = {"class": "standard", "pressure": LEAST, "prompt_tokens": 1_000}
# However busy this machine is, the engine is not ejected.
PATIENT: dict[str, Any] = {"fall": 100, "deep": {"fall": 100}}


async def until_pressed(penstock: Penstock, least: float) -> None:
    """Wait until requests in the queue make the pressure this high, or more."""
    async with asyncio.timeout(30.0):
        while await pressure(penstock) < least:
            await asyncio.sleep(0.02)


async def pressure(penstock: Penstock) -> float:
    """The highest one of the class `standard` in any pool."""
    pools = (await penstock.admin("queue"))["pools"]
    return max((float(each["pressure"].get("standard", 0.0)) for each in pools), default=0.0)


async def test_sdks_show_which_prompts_are_too_long_now(fleet: Fleet) -> None:
    _, penstock = await fleet(1, profile=PROFILE, admission={"degrade": [SHORT]}, health=PATIENT)
    options: Any = {"api_key": "k", "max_retries": 0, "timeout": 30}
    messages: Any = [{"role": "user", "content": LONG[0]["content"]}]
    async with (
        openai.AsyncOpenAI(base_url=penstock.url + "/v1", **options) as gpt,
        anthropic.AsyncAnthropic(base_url=penstock.url, **options) as claude,
    ):
        short: Any = [{"role": "user", "content": "Rivers?"}]
        flood = [asyncio.create_task(stream(penstock, number)) for number in range(6)]
        await until_pressed(penstock, LEAST)
        with pytest.raises(openai.APIStatusError) as one:
            await gpt.chat.completions.create(model="sim-model", messages=messages, max_tokens=3)
        with pytest.raises(anthropic.APIStatusError) as two:
            await claude.messages.create(model="sim-model", messages=messages, max_tokens=3)
        answered = await gpt.chat.completions.create(
            model="sim-model", messages=short, max_tokens=3
        )
        await asyncio.gather(*flood)
    assert answered.usage is not None
    for caught in (one.value, two.value):
        assert caught.status_code == 413
        assert "prompts of up to 1000 tokens" in str(caught)
        assert 10 <= int(caught.response.headers["retry-after"]) <= 21
    assert one.value.response.json()["error"]["code"] == "context_too_long_now"
    assert two.value.response.json()["error"]["type"] == "request_too_large"
