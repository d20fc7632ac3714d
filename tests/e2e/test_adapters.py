"""Adapters that real processes have simulated servers load at their first use."""

import asyncio
from typing import Any

import aiohttp
import orjson
import pytest

from penstock.bench.sim.server import SimServer
from tests.e2e.forked import run
from tests.e2e.process import Penstock, Serve, Simulate, StartSim
from tests.e2e.request import CHAT, Got, ask

LOAD = "/v1/load_lora_adapter"
ROUTES: list[dict[str, Any]] = [
    {
        "name": name,
        "match": {"model": name},
        "to": [{"pool": "default", "model": f"{name}-1", "lora_path": f"/adapters/{name}"}],
    }
    for name in ("sql", "law")
]
STREAM = CHAT | {"stream": True}


async def chat(penstock: Penstock, model: str = "sql") -> Got:
    return await ask(penstock, "/v1/chat/completions", STREAM | {"model": model})


def loads(*servers: SimServer) -> int:
    return sum(each.path == LOAD for server in servers for each in server.seen)


@pytest.fixture
async def servers(simulate: Simulate) -> list[SimServer]:
    found = await simulate(2, model="base", api_key="sk-of-the-pool-0123456789")
    for server in found:
        server.adapters.enabled = True
    return found


@pytest.fixture
async def penstock(servers: list[SimServer], serve: Serve) -> Penstock:
    key = {"api_key": "sk-of-the-pool-0123456789", "forward_authorization": "pool"}
    return await serve(servers, routes=ROUTES, pool=key)


async def test_many_first_requests_make_one_load(
    penstock: Penstock, servers: list[SimServer]
) -> None:
    for server in servers:
        server.adapters.load_s = 0.5
    answers = [asyncio.create_task(chat(penstock)) for _ in range(50)]
    await asyncio.sleep(0.2)
    beside = await asyncio.gather(*[chat(penstock, "base") for _ in range(8)])
    assert {each.headers["x-penstock-backend"] for each in beside} == {"b0", "b1"}
    assert not any(answer.done() for answer in answers)
    assert loads(*servers) == 1
    got = await asyncio.gather(*answers)
    assert {each.status for each in got} == {200}
    assert all(b'"model":"sql-1"' in each.body for each in got)
    holders = [each for each in servers if each.adapters.paths]
    assert all(each.adapters.paths == {"sql-1": "/adapters/sql"} for each in holders)
    keys = {each.header("authorization") for each in holders[0].seen if each.path == LOAD}
    assert keys == {"Bearer sk-of-the-pool-0123456789"}
    counted = 'penstock_adapter_loads_total{pool="default",result="ok"} 1.0'
    assert counted in await penstock.metrics()
    (line,) = [line for line in penstock.log if b"adapter loaded" in line]
    assert b"adapter=sql-1" in line


async def test_adapters_are_listed_before_they_are_loaded(
    penstock: Penstock, servers: list[SimServer]
) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{penstock.url}/v1/models") as got:
        cards = {each["id"]: each for each in orjson.loads(await got.read())["data"]}
    assert set(cards) == {"base", "sql", "law"}
    assert cards["sql"]["root"] == "sql-1"
    assert cards["sql"]["max_model_len"] == cards["base"]["max_model_len"]
    path = penstock.config.with_name("request.json")
    path.write_bytes(orjson.dumps(STREAM | {"model": "sql"}))
    explain = ["explain", str(path), "--admin", penstock.admin_url]
    done = await run(*explain)
    assert done.status == 0, done
    assert "A backend loads its adapter first." in done.out
    assert "it would wait, for 120 s at most" in done.out
    assert loads(*servers) == 0
    await chat(penstock)
    done = await run(*explain)
    assert "does not serve the model" in done.out
    assert "it would be sent at once" in done.out


async def test_an_adapter_is_loaded_again_after_a_restart(
    sim_process: StartSim, serve: Serve
) -> None:
    restarting = await sim_process("--profile", "instant", "--model", "base", "--enable-lora")
    admission = {"hold_for_backend_s": 30}
    penstock = await serve([restarting.url], routes=ROUTES, admission=admission)
    assert (await chat(penstock)).status == 200
    await restarting.kill()
    waiting = asyncio.create_task(chat(penstock))
    await asyncio.sleep(0.5)
    await restarting.start()
    assert (await waiting).status == 200
    assert len([line for line in penstock.log if b"adapter loaded" in line]) == 2
