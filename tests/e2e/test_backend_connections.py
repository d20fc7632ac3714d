"""Connections to backends: kept, shared, by name, and what they cost in ports."""

import asyncio
from pathlib import Path

from penstock.bench.sim.server import SimServer
from penstock.proxy.wire.host import Names
from tests.e2e.answers import ask
from tests.e2e.in_process import proxy
from tests.e2e.process import Fleet, Penstock, until
from tests.e2e.request import fetch
from tests.e2e.wire import Client, numbered

QUIET = {"interval_s": 60, "timeout_s": 5}
IDLE_S = 3.5  # after that it is closed
CLIENTS = 40
TIME_WAIT = "06"
SOCKETS = Path("/proc/net/tcp")


def waiting(port: int) -> int:
    """How many ports of ours toward this one are in TIME_WAIT."""
    rows = [line.split() for line in SOCKETS.read_text().splitlines()[1:]]
    return sum(row[3] == TIME_WAIT and row[2].endswith(f":{port:04X}") for row in rows)


def pool_turns(penstock: Penstock) -> int:
    """How often a thread of uvloop's pool began to wait."""
    tasks = Path(f"/proc/{penstock.process.pid}/task").iterdir()
    pool = [task for task in tasks if (task / "comm").read_text() == "libuv-worker\n"]
    lines = [line for task in pool for line in (task / "status").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary"))


async def begin(penstock: Penstock, *, late: bool, reset: bool) -> None:
    """Ask for a long stream and leave, at once or after what came first."""
    client = await Client.open(penstock, numbered(0, max_tokens=5_000, stream=True))
    if late:
        await client.until(b"data: ")
    client.close(reset=reset)


async def test_leaving_clients_use_up_no_ports(fleet: Fleet) -> None:
    (server,), penstock = await fleet(health=QUIET)
    before = waiting(server.port)
    for number in range(2 * CLIENTS):
        await begin(penstock, late=number % 2 > 0, reset=number % 4 > 1)
    await penstock.until_at_rest()
    await until(lambda: server.engine.idle)
    assert waiting(server.port) - before <= 1  # a probe's


async def test_idle_connections_use_up_no_ports(fleet: Fleet) -> None:
    """Each key has connections of its own, which are idle until they are too old."""
    (server,), penstock = await fleet(health=QUIET)
    before = waiting(server.port)
    for number in range(CLIENTS):
        key = b"authorization: Bearer key-%d\r\n" % number
        assert (await ask(penstock, headers=key, max_tokens=1)).status == 200
    await asyncio.sleep(IDLE_S + 0.5)
    assert server.connections_total >= CLIENTS
    assert waiting(server.port) - before <= 1


async def test_connecting_takes_no_thread(fleet: Fleet) -> None:
    """uvloop would look the address up in one, which costs more than the connection itself."""
    _, penstock = await fleet(health=QUIET)
    before = pool_turns(penstock)
    for number in range(CLIENTS):
        key = b"authorization: Bearer key-%d\r\n" % number
        assert (await ask(penstock, headers=key, max_tokens=1)).status == 200
    assert pool_turns(penstock) - before < CLIENTS / 2


def test_the_kernel_is_asked_for_a_route() -> None:
    from penstock.proxy.wire.host import has_way

    assert has_way("127.0.0.1")
    assert not has_way("255.255.255.255")  # not without leave to broadcast


NAME = "gpu.example"
NAMED_BODY = {"prompt": "x", "max_tokens": 2}


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


async def test_requests_and_probes_follow_a_name() -> None:
    first, second = await on_one_port()
    addresses = ["127.0.0.1"]

    async def lookup(name: str) -> list[str]:
        assert name == NAME
        return addresses

    async def until_served_by(server: SimServer) -> None:
        """Ask until it answers, which must be soon, and always whole."""
        async with asyncio.timeout(20):
            while (got := await fetch(url, "POST", json=NAMED_BODY)).json["model"] != server.model:
                assert got.status == 200
                await asyncio.sleep(0.02)

    keys = {"health.interval_s": 0.1, "health.deep.interval_s": 600.0}
    backend = [f"http://{NAME}:{first.port}"]
    async with proxy(Names(lookup, refresh_s=0.1), backends=backend, **keys) as app:
        url = f"http://127.0.0.1:{app.port}/v1/completions"
        # Its first look may have failed.
        await until(lambda: app.plane.fleet.backends[0].state == "ready", 20)
        await until_served_by(first)
        assert second.connections_total == 0
        addresses[:] = ["127.0.0.2"]
        await until_served_by(second)
        await asyncio.sleep(0.5)  # a probe may have been on its way
        made = first.connections_total
        for _ in range(20):  # kept connections to the former address are not used again
            assert (await fetch(url, "POST", json=NAMED_BODY)).status == 200
            await asyncio.sleep(0.02)
        assert first.connections_total == made  # nor do probes go there
        assert second.connections_total > 2
    await first.stop()
    await second.stop()
