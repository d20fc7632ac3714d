"""Degradation in a real process: short answers while others wait, and what clients are told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anthropic
import openai
import orjson
import pytest

from penstock.bench.sim.server import SimServer
from tests.e2e.process import Penstock, Serve, Simulate
from tests.e2e.request import BODIES, CHAT, Got, ask

PROFILE = "8b-1xa100"
# Some 6,000 tokens: a tenth of a second of this engine's prefill is far less.
LONG = "all work and no play " * 1_150
# The pressure of a step that is in force whenever requests wait.
LEAST = 0.001
CAP: dict[str, Any] = {"class": "standard", "pressure": LEAST, "max_tokens": 8}
SHORT: dict[str, Any] = {"class": "standard", "pressure": LEAST, "prompt_tokens": 1_000}
# However busy this machine is, the engine is not ejected.
PATIENT: dict[str, Any] = {"fall": 100, "deep": {"fall": 100}}
KEYS = {"in": "sk-in-5f2c91", "out": "sk-out-91ab77"}
TENANTS: list[dict[str, Any]] = [
    {"name": "in", "keys": [{"key": KEYS["in"]}], "degrade": True},
    {"name": "out", "keys": [{"key": KEYS["out"]}]},
]
LIMITS = {
    "/v1/chat/completions": "max_tokens",
    "/v1/completions": "max_tokens",
    "/v1/responses": "max_output_tokens",
    "/v1/messages": "max_tokens",
}


@asynccontextmanager
async def crowd(
    penstock: Penstock, model: str = "sim-model", **headers: str
) -> AsyncIterator[None]:
    """Long prompts of a client, more than the engine takes at once, while this lasts.

    It begins when some of them wait.
    """

    async def go_on(number: int) -> None:
        for turn in range(1_000):
            content = f"{number} {turn} {LONG}"
            body = CHAT | {"model": model, "messages": [{"role": "user", "content": content}]}
            await ask(penstock, "/v1/chat/completions", body, **headers)

    tasks = [asyncio.create_task(go_on(number)) for number in range(6)]
    try:
        await until_pressed(penstock, LEAST)
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def key_of(tenant: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[tenant]}"}


def generated(got: Got) -> int:
    usage = orjson.loads(got.body)["usage"]
    return int(usage.get("completion_tokens") or usage["output_tokens"])


def sent(server: SimServer, path: str) -> dict[str, Any]:
    """The last body of a short prompt that came to the engine on a path. Probes have others."""
    short = (b"rivers", b"Rivers", b"Once")
    seen = [each.body for each in server.seen if each.path == path]
    bodies = [body for body in seen if [words for words in short if words in body]]
    return dict(orjson.loads(bodies[-1]))


@pytest.mark.parametrize("path", BODIES)
async def test_in_every_api_an_answer_is_capped_and_its_client_told(
    simulate: Simulate, serve: Serve, path: str
) -> None:
    (server,) = await simulate(1, profile=PROFILE)
    penstock = await serve([server], admission={"degrade": [CAP]}, health=PATIENT)
    calm = await ask(penstock, path, BODIES[path])
    assert generated(calm) == 20
    assert "x-penstock-degraded" not in calm.headers
    async with crowd(penstock):
        without = {key: value for key, value in BODIES[path].items() if key != LIMITS[path]}
        wanted = [BODIES[path]]
        if path in ("/v1/chat/completions", "/v1/responses"):  # others need a limit, or have one
            wanted.append(without)
        for body in wanted:
            got = await ask(penstock, path, body)
            assert got.status == 200
            assert got.headers["x-penstock-degraded"] == "max_tokens=8"
            assert generated(got) == 8
            assert sent(server, path)[LIMITS[path]] == 8
    metrics = await penstock.metrics()
    count = metrics.partition('penstock_degraded_total{action="max_tokens"} ')[2].split()[0]
    assert float(count) >= len(wanted)
    assert 'penstock_pressure{pool="default",priority="standard"}' in metrics
    assert any(line.get("degraded") == "max_tokens=8" for line in penstock.access_lines)


async def test_only_tenants_that_opted_in_are_degraded(simulate: Simulate, serve: Serve) -> None:
    servers = await simulate(1, profile=PROFILE)
    penstock = await serve(servers, admission={"degrade": [CAP]}, tenants=TENANTS, health=PATIENT)
    path = "/v1/completions"
    for tenant, tokens in (("in", 8), ("out", 20)):
        async with crowd(penstock, **key_of(tenant)):
            got = await ask(penstock, path, BODIES[path], **key_of(tenant))
        assert (got.status, generated(got)) == (200, tokens)
        assert got.headers.get("x-penstock-degraded") == {8: "max_tokens=8"}.get(tokens)


async def test_a_flood_of_one_tenant_does_not_cap_the_answers_of_another(
    simulate: Simulate, serve: Serve
) -> None:
    servers = await simulate(1, profile=PROFILE)
    tenants = [each | {"degrade": True} for each in TENANTS]
    steps = [CAP | {"pressure": 0.3}]
    penstock = await serve(servers, admission={"degrade": steps}, tenants=tenants, health=PATIENT)
    path = "/v1/completions"
    flood = [asyncio.create_task(stream(penstock, number, **key_of("out"))) for number in range(60)]
    await until_pressed(penstock, 0.3)
    last = await ask(penstock, path, BODIES[path], **key_of("in"))
    for each in flood:
        each.cancel()
    await asyncio.gather(*flood, return_exceptions=True)
    assert generated(last) == 20
    assert "x-penstock-degraded" not in last.headers


async def until_pressed(penstock: Penstock, least: float) -> None:
    """Wait until requests in the queue make the pressure this high, or more."""
    async with asyncio.timeout(30.0):
        while await pressure(penstock) < least:
            await asyncio.sleep(0.02)


async def pressure(penstock: Penstock) -> float:
    """The highest one of the class `standard` in any pool."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{penstock.admin_url}/api/v1/queue") as answer,
    ):
        pools = (await answer.json())["pools"]
        values = [float(pool["pressure"].get("standard", 0.0)) for pool in pools]
        return max(values, default=0.0)


async def stream(penstock: Penstock, number: int, **headers: str) -> Got:
    body = CHAT | {"messages": [{"role": "user", "content": f"{number} {LONG}"}], "stream": True}
    return await ask(penstock, "/v1/chat/completions", body, **headers)


async def test_sdks_tell_which_prompts_are_too_long_for_now(
    simulate: Simulate, serve: Serve
) -> None:
    servers = await simulate(1, profile=PROFILE)
    penstock = await serve(servers, admission={"degrade": [SHORT]}, health=PATIENT)
    options: Any = {"api_key": "k", "max_retries": 0, "timeout": 30}
    messages: Any = [{"role": "user", "content": LONG}]
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


async def test_a_smaller_model_answers_while_others_wait(simulate: Simulate, serve: Serve) -> None:
    (large,) = await simulate(1, model="llama", profile=PROFILE)
    (small,) = await simulate(1, model="qwen", profile=PROFILE)
    pools = [
        {"name": name, "backends": [{"name": f"{name}-0", "url": each.url}]}
        for name, each in (("large", large), ("small", small))
    ]
    fallback = {"pool": "small", "model": "qwen", "on": ["overload"]}
    # The crowd has no fall-back, so the small model is free for the others.
    to = [{"pool": "large", "model": "llama"}]
    routes = [
        {"name": "crowd", "match": {"model": "llama"}, "to": to},
        {"name": "r", "to": to, "fallbacks": [fallback]},
    ]
    step = {"class": "standard", "pressure": LEAST, "fall_back": True}
    penstock = await serve(
        [large, small], pools=pools, routes=routes, admission={"degrade": [step]}, health=PATIENT
    )
    calm = await ask(penstock, "/v1/chat/completions", CHAT)
    assert calm.headers["x-penstock-model"] == "llama"
    async with crowd(penstock, model="llama"):
        asked = [ask(penstock, "/v1/chat/completions", CHAT) for _ in range(12)]
        got = await asyncio.gather(*asked)
    assert {each.status for each in got} == {200}
    sent_away = [each for each in got if each.headers.get("x-penstock-degraded") == "fall_back"]
    assert sent_away
    assert {each.headers["x-penstock-model"] for each in sent_away} == {"qwen"}
    count = 'penstock_degraded_total{action="fall_back"}'
    assert count in await penstock.metrics()
