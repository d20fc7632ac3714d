"""Routes, mirrors and canaries from the outside."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.bench.sim.server import SimServer
from tests.e2e.forked import run
from tests.e2e.process import Penstock, Serve, Simulate, pool_of
from tests.e2e.request import CHAT, ask

ROUTES: list[dict[str, Any]] = [
    {"name": "gone", "match": {"model": "gpt-3*"}, "refuse": "Ask for gpt-small."},
    {
        "name": "with-tools",
        "match": {"model": "gpt-small", "needs": ["tools"]},
        "to": [{"pool": "large", "model": "llama"}],
    },
    {
        "name": "small",
        "match": {"model": "gpt-small"},
        "to": [{"pool": "small", "model": "qwen"}],
        "fallbacks": [{"pool": "large", "model": "llama"}],
    },
]
ASKED = CHAT | {"model": "gpt-small"}
Fleet = tuple[SimServer, SimServer, Penstock]


@pytest.fixture
async def fleet(simulate: Simulate, serve: Serve) -> Fleet:
    (small,) = await simulate(1, model="qwen")
    (large,) = await simulate(1, model="llama")
    pools = [pool_of("small", {"s0": small}), pool_of("large", {"l0": large})]
    return small, large, await serve([small, large], pools=pools, routes=ROUTES)


async def test_explain_shows_the_route(fleet: Fleet, tmp_path: Any) -> None:
    """And where a request goes while the pool of its route serves nobody."""
    small, _, penstock = fleet
    file = tmp_path / "body.json"
    file.write_bytes(orjson.dumps(ASKED))
    told = await run("explain", str(file), "--admin", penstock.admin_url)
    assert told.status == 0, told.err
    assert "route with-tools does not count: it does not ask for tools" in told.out
    assert "route small counts: pool small, model qwen" in told.out
    await small.stop()
    await penstock.until(lambda listing: not listing[0]["can_serve"], 10)
    told = await run("explain", str(file), "--admin", penstock.admin_url)
    assert (told.status, "In the class" in told.out) == (0, True)
    assert "route small counts: pool large, model llama" in told.out


ROUTE: dict[str, Any] = {
    "name": "versions",
    "match": {"model": "sim-model"},
    "to": [{"pool": "chat"}],
    "sticky": "request",
    "canary": {
        "pool": "next",
        "steps": [50, 100],
        "every_s": 600,
        "judge": {"min_requests": 20, "clients_min": 1},
    },
}


async def served(penstock: Penstock, requests: int) -> list[str]:
    """The pools' backends that requests were drawn to."""
    tasks = [ask(penstock, "/v1/chat/completions", CHAT) for _ in range(requests)]
    return [got.headers["x-penstock-backend"] for got in await asyncio.gather(*tasks)]


async def told(penstock: Penstock, *words: str) -> str:
    ran = await run("canary", *words, "--admin", penstock.admin_url)
    assert ran.status == 0, ran.err
    return ran.out


async def test_a_failing_canary_is_rolled_back_for_good(
    simulate: Simulate, serve: Serve, tmp_path: Path
) -> None:
    stable, worse = await simulate(2)
    pools = [pool_of("chat", {"b0": stable}), pool_of("next", {"b1": worse})]
    config = {"pools": pools, "routes": [ROUTE], "state": {"dir": str(tmp_path / "state")}}
    penstock = await serve([stable, worse], **config)
    assert set(await served(penstock, 40)) == {"b0", "b1"}
    assert "versions: running, 50 % to pool next" in await told(penstock, "status")
    worse.faults.set("internal_error")
    async with asyncio.timeout(30):
        while "rolled back" not in await told(penstock, "status"):
            await asyncio.gather(*[ask(penstock, "/v1/chat/completions", CHAT) for _ in range(20)])
    worse.faults.clear()
    assert set(await served(penstock, 20)) == {"b0"}
    text = await told(penstock, "status", "versions")
    assert "0 % to pool next" in text
    assert "worse: errors" in text
    await penstock.stop()

    again = await serve([stable, worse], **config)
    assert "rolled back" in await told(again, "status")
    assert set(await served(again, 20)) == {"b0"}
    assert "running, 50 %" in await told(again, "restart", "versions")
    assert set(await served(again, 40)) == {"b0", "b1"}
    assert "promoted, 100 %" in await told(again, "promote", "versions")
    assert set(await served(again, 20)) == {"b1"}


async def test_commands_without_a_canary(simulate: Simulate, serve: Serve) -> None:
    penstock = await serve(await simulate(1))
    assert "no canary" in await told(penstock, "status")
    ran = await run("canary", "abort", "nothing", "--admin", penstock.admin_url)
    assert ran.status == 1
    assert "No route of this name has a canary." in ran.err
    ran = await run("canary", "abort", "--admin", penstock.admin_url)
    assert ran.status == 1
    assert "penstock canary abort ROUTE" in ran.err
