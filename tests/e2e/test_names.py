"""Backends by name: an app in this process, with a name service of the test's."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import aiohttp
import pytest

from penstock.bench.sim.server import SimServer
from penstock.proxy.app import App
from penstock.proxy.reload.source import Source
from penstock.proxy.wire.host import Names

NAME = "gpu.example"
BODY = {"prompt": "x", "max_tokens": 2}


class Service:
    """Answers for one name."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.asked = 0

    async def __call__(self, name: str) -> Sequence[str]:
        assert name == NAME
        self.asked += 1
        if not self.addresses:
            raise OSError("no answer")
        return self.addresses


@pytest.fixture
def names() -> Service:
    return Service()


class Place:
    """Two servers on one port of two addresses of loopback, and an app before their name."""

    def __init__(self, app: App, first: SimServer, second: SimServer) -> None:
        self.app = app
        self.servers = {"127.0.0.1": first, "127.0.0.2": second}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.app.port}"

    async def until_served_by(self, session: aiohttp.ClientSession, address: str) -> None:
        """Ask until that server answers, which must be soon, and always whole."""
        async with asyncio.timeout(20):
            while await self.ask(session) != self.servers[address].model:
                await asyncio.sleep(0.02)

    async def ask(self, session: aiohttp.ClientSession) -> str:
        """Who served it."""
        async with session.post(f"{self.url}/v1/completions", json=BODY) as answer:
            assert answer.status == 200, await answer.text()
            return str((await answer.json())["model"])


async def on_one_port() -> tuple[SimServer, SimServer]:
    """Two servers. A port that is free at one address may be taken at the other: try another."""
    for _ in range(20):
        first, second = (SimServer(model=f"sim-{i}", profile="instant") for i in (1, 2))
        await first.start("127.0.0.1")
        try:
            await second.start("127.0.0.2", first.port)
        except OSError:
            await first.stop()
        else:
            return first, second
    raise AssertionError("no port was free at both addresses")


@pytest.fixture
async def place(names: Service) -> AsyncIterator[Place]:
    first, second = await on_one_port()
    names.addresses = ["127.0.0.1"]
    flags = {
        "backends": [f"http://{NAME}:{first.port}"],
        "listen.host": "127.0.0.1",
        "listen.port": 0,
        "admin.port": 0,
        "health.interval_s": 0.1,
        "health.deep.interval_s": 600.0,
        "log.access": False,
    }
    source = Source(None, {}, flags)
    app = App(source, source.load(), names=Names(names, refresh_s=0.1))
    await app.start()
    async with asyncio.timeout(20):
        await app.monitor.started.wait()
        while app.plane.fleet.backends[0].state != "ready":  # its first look may have failed
            await asyncio.sleep(0.02)
    yield Place(app, first, second)
    await app.close()
    await first.stop()
    await second.stop()


async def test_a_name_that_moves_takes_requests_and_probes_with_it(
    place: Place, names: Service
) -> None:
    first, second = place.servers.values()
    async with aiohttp.ClientSession() as session:
        await place.until_served_by(session, "127.0.0.1")
        assert second.connections_total == 0
        names.addresses = ["127.0.0.2"]
        await place.until_served_by(session, "127.0.0.2")
        await asyncio.sleep(0.5)  # a probe may have been on its way
        made = first.connections_total
        for _ in range(20):  # kept connections to the former address are not used again
            await place.ask(session)
            await asyncio.sleep(0.02)
        assert first.connections_total == made  # nor do probes go there
        assert second.connections_total > 2


async def test_names_that_cannot_be_looked_up_stay_where_they_were(
    place: Place, names: Service
) -> None:
    async with aiohttp.ClientSession() as session:
        names.addresses = []
        asked = names.asked
        async with asyncio.timeout(20):
            while names.asked < asked + 3:
                await place.until_served_by(session, "127.0.0.1")
        (backend,) = place.app.plane.fleet.backends
        assert backend.state == "ready"


async def test_of_several_addresses_one_that_takes_connections_is_used(
    place: Place, names: Service
) -> None:
    place.servers["127.0.0.1"].faults.set("refuse")
    names.addresses = ["127.0.0.1", "127.0.0.2"]
    async with aiohttp.ClientSession() as session:
        async with asyncio.timeout(20):
            while not place.servers["127.0.0.2"].connections_total:
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)
        await place.until_served_by(session, "127.0.0.2")
