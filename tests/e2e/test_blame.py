"""One client's failing requests, beside others' long streams: nobody is ejected for them."""

import asyncio
from typing import Any

import aiohttp

from tests.e2e.answers import ask
from tests.e2e.process import Penstock, Serve, Simulate

CHAT = {"model": "sim-model", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
LONG = {"model": "sim-model", "prompt": "on and on", "max_tokens": 4_000, "stream": True}


class Streams:
    """Long streams of another client's, which must all go on."""

    def __init__(self, penstock: Penstock, count: int) -> None:
        self._penstock = penstock
        self._count = count
        self.broken: list[str] = []

    async def __aenter__(self) -> "Streams":
        self._session = aiohttp.ClientSession()
        self._tasks = [asyncio.create_task(self._stream()) for _ in range(self._count)]
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()

    async def _stream(self) -> None:
        async with self._session.post(f"{self._penstock.url}/v1/completions", json=LONG) as answer:
            async for line in answer.content:
                if b'"error":{' in line:
                    self.broken.append(line.decode())


async def attack(penstock: Penstock, requests: int, every_s: float) -> list[int]:
    """Requests that every backend answers with 500, from an address of the attacker's."""
    connector = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
    statuses = []
    async with aiohttp.ClientSession(connector=connector) as session:
        for _ in range(requests):
            async with session.post(f"{penstock.url}/v1/chat/completions", json=CHAT) as answer:
                statuses.append(answer.status)
            await asyncio.sleep(every_s)
    return statuses


async def test_what_one_client_breaks_everywhere_ejects_nobody(
    simulate: Simulate, serve: Serve
) -> None:
    servers = await simulate(4, profile="default")
    penstock = await serve(servers, health={"interval_s": 1, "slow_start_s": 1})
    for server in servers:
        server.faults.set("internal_error", path="/v1/chat/completions")
    async with Streams(penstock, 12) as streams:
        statuses = await attack(penstock, 60, 0.05)
        listing = await penstock.backends()
    assert set(statuses) == {500}
    assert [each["state"] for each in listing] == ["ready"] * 4
    log = b"".join(penstock.log)
    assert log.count(b"backend ejected") == 0, log.decode()
    assert streams.broken == []


async def test_behind_one_address_a_broken_backend_is_out_all_the_same(
    simulate: Simulate, serve: Serve
) -> None:
    servers = await simulate(3)
    penstock = await serve(servers, health={"interval_s": 2})
    servers[0].faults.set("internal_error")

    async def keep_asking() -> dict[str, Any]:
        while True:
            await ask(penstock, max_tokens=2, stream=True)

    asking = asyncio.create_task(keep_asking())
    await penstock.until(lambda listing: listing[0]["state"] == "ejected", 3)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert (await penstock.backends())[0]["reason"] == "failing"
