"""The alert rules in a real Prometheus: real trouble makes them fire, and its end clears them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.bench.sim.profiles import Profile
from penstock.bench.sim.server import SimServer
from tests.e2e.forked import run
from tests.e2e.process import Penstock, Serve, Simulate
from tests.e2e.prometheus import Prometheus, names_of, needs_prometheus
from tests.e2e.request import CHAT, ask
from tests.e2e.sim_process import SimProcess
from tests.e2e.traffic import going_on

pytestmark = pytest.mark.once

CHATS = "/v1/chat/completions"
# It runs two requests at once, slowly. All others wait in its queue.
NARROW = Profile("narrow", step_base_s=0.02, max_num_seqs=2)
WAITING = 6
OUT, QUEUE, BURN, DOWN = (
    "PenstockBackendOut",
    "PenstockEngineQueue",
    "PenstockSloFastBurn",
    "PenstockDown",
)


@pytest.fixture
async def killed() -> AsyncIterator[SimProcess]:
    """A server that a test may kill and start again."""
    process = SimProcess("--profile", "instant")
    await process.start()
    yield process
    await process.kill()


async def chats(penstock: Penstock) -> None:
    """One request after the other, whatever becomes of it."""
    while True:
        await ask(penstock, CHATS, CHAT | {"max_tokens": 2})
        await asyncio.sleep(0.05)


async def long_answer(penstock: Penstock) -> None:
    await ask(penstock, CHATS, CHAT | {"model": "narrow", "max_tokens": 100_000, "stream": True})


def pools(steady: SimServer, killed: SimProcess, narrow: SimServer) -> list[dict[str, Any]]:
    chat = [{"name": "steady", "url": steady.url}, {"name": "killed", "url": killed.url}]
    return [
        {"name": "chat", "backends": chat},
        {"name": "slow", "backends": [{"name": "narrow", "url": narrow.url}]},
    ]


@needs_prometheus
@pytest.mark.timeout(90)
async def test_alerts_fire_with_the_trouble_and_clear_with_its_end(
    simulate: Simulate, serve: Serve, killed: SimProcess, tmp_path: Path
) -> None:
    (steady,) = await simulate()
    (narrow,) = await simulate(profile=NARROW, model="narrow")
    penstock = await serve(
        [steady.url, killed.url, narrow.url],
        pools=pools(steady, killed, narrow),
        slo=[{"pool": "chat", "availability": 0.99}],
        admission={"enabled": False},  # what waits, waits in the engine
    )
    rules = (await run("alerts", str(penstock.config))).out
    async with Prometheus(tmp_path, rules) as prometheus, going_on(chats(penstock)):
        # It knows no penstock.
        await prometheus.until_firing(DOWN, within_s=15)
        prometheus.scrapes(penstock.admin_port)
        await prometheus.until_inactive(DOWN, within_s=10)
        while await prometheus.samples("penstock_backend_engine_waiting") < 3:
            await asyncio.sleep(0.2)
        await asyncio.sleep(3.0)  # scrapes and evaluations of a fleet without trouble
        # Not that of its loop: a busy machine makes that late.
        assert not names_of(await prometheus.alerts()) & {OUT, QUEUE, BURN, DOWN}

        async with going_on(*(long_answer(penstock) for _ in range(2 + WAITING))):
            await killed.kill()
            steady.faults.set("internal_error", path=CHATS)
            firing = await prometheus.until_firing(OUT, QUEUE, BURN, within_s=30)
        assert firing[OUT]["labels"]["backend"] == "killed"
        assert firing[QUEUE]["labels"]["backend"] == "narrow"
        assert firing[QUEUE]["annotations"]["summary"].startswith(f"{WAITING} or more requests")
        assert firing[BURN]["labels"].items() >= {"pool": "chat", "slo": "availability"}.items()

        await killed.start()
        steady.faults.clear()
        await prometheus.until_inactive(OUT, QUEUE, BURN, within_s=30)
        prometheus.scrapes()  # as when discovery loses it
        await prometheus.until_firing(DOWN, within_s=10)
        prometheus.scrapes(penstock.admin_port)
        await prometheus.until_inactive(DOWN, within_s=10)
