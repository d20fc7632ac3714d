"""A real vLLM that is killed, or drains, under load: clients see no error that could be hidden."""

import asyncio

import aiohttp

from tests.e2e.process import Penstock
from tests.vllm.load import load
from tests.vllm.server import VllmServer
from tests.vllm.test_leaving import LONG


async def test_a_server_is_killed_and_comes_back(
    penstock: Penstock, servers: list[VllmServer]
) -> None:
    """Who had a first token from it sees a broken stream; nobody else sees anything."""
    async with load(penstock) as running:
        await running.more_from("b0", 10)
        await running.more_from("b1", 10)
        await asyncio.to_thread(servers[0].kill)
        await running.more_from("b1", 20)
        servers[0].start()
        await asyncio.to_thread(servers[0].wait)
        await penstock.until_ready(2, within_s=60)
        await running.more_from("b0", 10, within_s=60)
    print(dict(running.told))
    assert running.errors == []
    assert running.told["broken"] <= 8  # one a client: those that were being answered
    await penstock.until_at_rest()


async def test_a_draining_server_costs_no_request(
    penstock: Penstock, servers: list[VllmServer]
) -> None:
    """Healthy by every probe, it fails all it is asked; its streams end well meanwhile."""
    async with load(penstock) as running:
        await running.more_from("b0", 10)
        await running.more_from("b1", 10)
        servers[0].drain()
        served = running.told["b0"]
        await running.more_from("b1", 60)
        async with asyncio.timeout(40):
            while await asyncio.to_thread(servers[0].healthy):
                await asyncio.sleep(0.1)
        assert running.told["b0"] - served <= 8  # what it had begun
        await running.more_from("b1", 10)
    print(dict(running.told))
    assert running.errors == []
    assert running.told["broken"] == 0
    await penstock.until_at_rest()


async def test_a_draining_server_with_long_streams(
    penstock: Penstock, servers: list[VllmServer]
) -> None:
    """Held open by a stream, it goes on failing requests for seconds; nobody notices."""
    url = f"{servers[0].url}/v1/completions"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json=LONG | {"stream": True}) as held,
    ):
        await held.content.readline()
        async with load(penstock) as running:
            servers[0].drain()
            await running.more_from("b1", 100, within_s=60)
            assert servers[0].healthy()
        print(dict(running.told))
        assert running.errors == []
        assert running.told["broken"] == 0
        assert 'penstock_attempts_total{reason="draining"}' in await penstock.metrics()
    await penstock.until_at_rest()
