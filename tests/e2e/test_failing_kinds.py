"""What a real server answers to each kind of probe, and one that fails only chats."""

import asyncio

import aiohttp
import pytest

from penstock.health.probes import Prober, Task
from penstock.health.questions import Questions
from penstock.proxy.wire.pool import ConnectionPool
from tests.e2e.process import Serve, Simulate

CHAT = {"model": "sim-model", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}


@pytest.mark.parametrize("task", [task for task in Task if task is not Task.NONE])
async def test_each_kind_of_work_is_done(simulate: Simulate, task: Task) -> None:
    (server,) = await simulate(1)
    pool = ConnectionPool(asyncio.get_running_loop(), server.url, connect_timeout_s=1)
    prober = Prober(Questions(server.url, pool))
    assert (await prober.deep("sim-model", task, 5.0))[1].passed


async def test_a_backend_that_fails_only_chats_is_out_behind_one_address(
    simulate: Simulate, serve: Serve
) -> None:
    servers = await simulate(3)
    penstock = await serve(servers, health={"interval_s": 1})

    async def keep_asking() -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                async with session.post(f"{penstock.url}/v1/chat/completions", json=CHAT) as answer:
                    await answer.read()

    asking = asyncio.create_task(keep_asking())
    try:
        await penstock.until(lambda listing: listing[1]["requests_total"] > 5, 5)
        servers[0].faults.set("internal_error", path="/v1/chat/completions")
        await penstock.until(lambda listing: listing[0]["state"] == "ejected", 10)
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    assert [each["state"] for each in await penstock.backends()][1:] == ["ready"] * 2
