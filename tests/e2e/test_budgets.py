"""Budgets of tenants in a real process: what is refused, kept and shown."""

import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import openai
import pytest

from tests.e2e.answers import BODIES
from tests.e2e.forked import run
from tests.e2e.process import Fleet, Penstock, Serve, Simulate, until

KEY, OTHER = "sk-research-5f2c91", "sk-others-91ab77"
HEADERS = {"authorization": f"Bearer {KEY}"}
USER: list[dict[str, str]] = [{"role": "user", "content": "Tell me of rivers."}]


def tenants(**limits: Any) -> list[dict[str, Any]]:
    return [
        {"name": "research", "keys": [{"key": KEY}], "limits": limits},
        {"name": "others", "keys": [{"key": OTHER}]},
    ]


async def complete(penstock: Penstock, count: int = 1) -> None:
    """So many requests of the tenant are answered, one after another."""
    url, body = f"{penstock.url}/v1/completions", BODIES["/v1/completions"]
    async with aiohttp.ClientSession(headers=HEADERS) as session:
        for _ in range(count):
            async with session.post(url, json=body) as answer:
                assert answer.status == 200


async def told(penstock: Penstock, tenant: str = "research") -> dict[str, Any]:
    (found,) = [each for each in await penstock.admin("tenants") if each["name"] == tenant]
    return dict(found)


async def used(penstock: Penstock) -> dict[str, int]:
    """By budget, what is gone of it."""
    budgets = (await told(penstock))["budgets"]
    return {each["limit"]: each["allowed"] - each["left"] for each in budgets}


async def test_a_stored_conversation_counts(fleet: Fleet) -> None:
    """A follow-up is short, and its engine reads all that came before."""
    _, penstock = await fleet(2, tenants=tenants(prompt_tokens=1_000))
    url, words = f"{penstock.url}/v1/responses", "water " * 700

    async def ask(**fields: Any) -> tuple[int, dict[str, Any]]:
        body = BODIES["/v1/responses"] | {"stream": False, "max_output_tokens": 5} | fields
        async with session.post(url, json=body) as answer:
            return answer.status, await answer.json()

    async with aiohttp.ClientSession(headers=HEADERS) as session:
        status, first = await ask(input=words)
        assert status == 200
        status, second = await ask(input="And then?", previous_response_id=first["id"])
        assert status == 200
        assert second["usage"]["input_tokens"] > 700
        status, refused = await ask(input=words, previous_response_id=second["id"])
        assert status == 400, refused
        assert "1000 tokens at most" in refused["error"]["message"]
        status, _ = await ask(input=words)  # it begins anew
        assert status == 200


async def test_openais_sdk_waits_or_gives_up(fleet: Fleet) -> None:
    """It waits for as long as it is told, and gives up at once if that is too long."""
    _, penstock = await fleet(1, tenants=tenants(requests_per_minute=60))
    ask: Any = {"model": "sim-model", "messages": USER, "max_tokens": 2}
    async with openai.AsyncOpenAI(base_url=f"{penstock.url}/v1", api_key=KEY) as client:
        for _ in range(60):
            await client.chat.completions.create(**ask)
        await client.chat.completions.create(**ask)  # told to come back in a second
        assert (await told(penstock))["refused"] <= 1
        await penstock.reload(tenants=tenants(requests_per_day=1))
        await client.chat.completions.create(**ask)
        before = (await told(penstock))["refused"]
        with pytest.raises(openai.RateLimitError) as raised:
            await client.chat.completions.create(**ask)
        assert (await told(penstock))["refused"] == before + 1
        assert "requests_per_day is 1" in str(raised.value)
        assert raised.value.code == "rate_limited"


async def test_anthropics_sdk_sees_the_limits(fleet: Fleet) -> None:
    _, penstock = await fleet(1, tenants=tenants(requests_per_day=1))
    async with anthropic.AsyncAnthropic(base_url=penstock.url, api_key=KEY) as client:
        ask: Any = {"model": "sim-model", "messages": USER, "max_tokens": 2}
        whole = await client.messages.with_raw_response.create(**ask)
        assert whole.headers["anthropic-ratelimit-requests-remaining"] == "0"
        with pytest.raises(anthropic.RateLimitError) as raised:
            await client.messages.create(**ask)
        assert raised.value.response.headers["x-should-retry"] == "false"


async def test_the_command_shows_budgets(fleet: Fleet) -> None:
    _, penstock = await fleet(1, tenants=tenants(requests_per_day=100, concurrent=5))
    await complete(penstock)
    usage = ("usage", "--admin", penstock.admin_url)
    status, text, _ = await run(*usage)
    assert status == 0
    lines = [line.split() for line in text.splitlines()]
    assert ["research", "sim-model", "1"] in [line[:3] for line in lines]
    assert ["research", "requests_per_day", "100", "99"] in [line[:4] for line in lines]
    assert ["research", "concurrent", "5", "5", "-"] in lines
    assert "others" in text
    status, text, _ = await run(*usage, "--tenant", "others")
    assert (status, "research" in text) == (0, False)
    status, _, said = await run(*usage, "--tenant", "nobody")
    assert status == 1
    assert "tenants: research, others" in said


async def test_a_killed_process_forgets_one_second(
    simulate: Simulate, serve: Serve, tmp_path: Path
) -> None:
    servers = await simulate(1)
    settings = {"tenants": tenants(requests_per_day=100), "state": {"dir": str(tmp_path)}}
    first = await serve(servers, **settings)
    await complete(first, 5)
    await until(lambda: _written(tmp_path))
    first.process.send_signal(signal.SIGKILL)
    second = await serve(servers, **settings)
    assert (await used(second))["requests_per_day"] == 5
    assert (await told(second))["models"][0]["requests"] == 5


def _written(folder: Path) -> bool:
    with closing(sqlite3.connect(folder / "penstock.db")) as database:
        return (5,) in database.execute("SELECT requests FROM used").fetchall()
