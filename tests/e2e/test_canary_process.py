"""A canary in a real process: told by commands and metrics, and kept over a restart."""

import asyncio
from pathlib import Path
from typing import Any

from tests.e2e.forked import run
from tests.e2e.process import Penstock, Serve, Simulate
from tests.e2e.request import CHAT, ask

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


async def test_a_canary_that_fails_is_rolled_back_and_stays_so(
    simulate: Simulate, serve: Serve, tmp_path: Path
) -> None:
    stable, worse = await simulate(2)
    pools = [
        {"name": "chat", "backends": [{"name": "b0", "url": stable.url}]},
        {"name": "next", "backends": [{"name": "b1", "url": worse.url}]},
    ]
    config = {"pools": pools, "routes": [ROUTE], "state": {"dir": str(tmp_path / "state")}}
    penstock = await serve([stable, worse], **config)
    assert set(await served(penstock, 40)) == {"b0", "b1"}
    assert "versions: running, 50 % to pool next" in await told(penstock, "status")
    worse.faults.set("internal_error")
    async with asyncio.timeout(30):
        while "rolled back" not in await told(penstock, "status"):
            await asyncio.gather(
                *[ask(penstock, "/v1/chat/completions", CHAT) for _ in range(20)],
            )
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


async def test_a_word_to_no_canary(simulate: Simulate, serve: Serve) -> None:
    penstock = await serve(await simulate(1))
    assert "no canary" in await told(penstock, "status")
    ran = await run("canary", "abort", "nothing", "--admin", penstock.admin_url)
    assert ran.status == 1
    assert "No route of this name has a canary." in ran.err
    ran = await run("canary", "abort", "--admin", penstock.admin_url)
    assert ran.status == 1
    assert "penstock canary abort ROUTE" in ran.err
