"""Why a pool is slow, as a running process tells it."""

import asyncio
from typing import Any

import aiohttp

from tests.e2e.answers import BODIES
from tests.e2e.process import Penstock, Serve, Simulate

WITHIN_S = 30.0  # ten fine looks, a second each, and what the window remembers


async def verdict(penstock: Penstock) -> dict[str, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{penstock.admin_url}/api/v1/verdict") as answer,
    ):
        (told,) = await answer.json() or [{"kind": "none"}]
        return dict(told)


async def until_told(penstock: Penstock, kind: str) -> dict[str, Any]:
    async with asyncio.timeout(WITHIN_S):
        while (told := await verdict(penstock))["kind"] != kind:
            await asyncio.sleep(0.2)
    return told


async def test_a_backend_that_is_out_is_told_and_forgotten_when_it_is_back(
    simulate: Simulate, serve: Serve
) -> None:
    first, second = await simulate(2)
    penstock = await serve([first, second], health={"interval_s": 0.2, "rise": 1})
    await until_told(penstock, "fine")
    second.faults.set("health_503")
    told = await until_told(penstock, "failing")
    assert told["backend"] == "b1"
    assert "b1 is out" in told["sentence"]
    assert "restart it" in told["to_do"][0]
    assert 'penstock_bottleneck{kind="failing",pool="default"} 1.0' in await penstock.metrics()
    second.faults.clear()
    await until_told(penstock, "fine")


async def test_requests_that_a_limit_of_ours_keeps_are_told(
    simulate: Simulate, serve: Serve
) -> None:
    servers = await simulate(1, profile="steady-50")
    penstock = await serve(servers, pool={"max_requests": 1})
    body = BODIES["/v1/completions"] | {"max_tokens": 250, "stream": True}

    async def ask(session: aiohttp.ClientSession) -> None:
        async with session.post(f"{penstock.url}/v1/completions", json=body) as answer:
            await answer.read()

    async with aiohttp.ClientSession() as session:
        asking = [asyncio.create_task(ask(session)) for _ in range(6)]
        told = await until_told(penstock, "waiting")
        assert told["detail"] == "requests"
        assert "max_requests" in told["sentence"]
        for each in asking:
            each.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    assert (await until_told(penstock, "fine"))["to_do"] == []
