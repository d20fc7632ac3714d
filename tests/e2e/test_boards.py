"""Alert rules and Grafana boards before a real Prometheus."""

import asyncio
import contextlib
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from penstock.bench.sim.profiles import Profile
from penstock.bench.sim.server import SimServer
from tests.boards import Asked, asked
from tests.certificates import issue
from tests.e2e.forked import SimProcess, run
from tests.e2e.process import Penstock, Serve, Simulate, StartSim, pool_of
from tests.e2e.prometheus import Prometheus, names_of, needs_prometheus
from tests.e2e.request import CHAT, ask
from tests.e2e.told import FakeExporter
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


async def chats(penstock: Penstock) -> None:
    """One request after the other, whatever becomes of it."""
    while True:
        await ask(penstock, CHATS, CHAT | {"max_tokens": 2})
        await asyncio.sleep(0.05)


async def long_answer(penstock: Penstock) -> None:
    await ask(penstock, CHATS, CHAT | {"model": "narrow", "max_tokens": 100_000, "stream": True})


@needs_prometheus
@pytest.mark.timeout(90)
async def test_alerts_fire_with_the_trouble_and_clear_with_its_end(
    simulate: Simulate, serve: Serve, sim_process: StartSim, tmp_path: Path
) -> None:
    (steady,), killed = await simulate(), await sim_process("--profile", "instant")
    (narrow,) = await simulate(profile=NARROW, model="narrow")
    penstock = await serve(
        [steady.url, killed.url, narrow.url],
        pools=[
            pool_of("chat", {"steady": steady, "killed": killed}),
            pool_of("slow", {"narrow": narrow}),
        ],
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


PROFILE = "8b-1xh100"
# A prompt that every session begins with, and one more than the engines take at once.
TEXT = "all work and no play " * 200
CLIENTS, SESSIONS = 8, 4
KEYS = {name: {"authorization": f"Bearer sk-{name}-5f2c91"} for name in ("research", "flood")}
TENANTS: list[dict[str, Any]] = [
    {"name": "research", "keys": [{"key": "sk-research-5f2c91"}], "degrade": True},
    {"name": "flood", "keys": [{"key": "sk-flood-5f2c91"}], "limits": {"requests_per_minute": 30}},
]
CONFIG: dict[str, Any] = {
    "tenants": TENANTS,
    "slo": [{"pool": "chat", "ttft_s": {"p95": 1.0}}, {"availability": 0.99}],
    "admission": {"degrade": [{"class": "standard", "pressure": 0.001, "max_tokens": 8}]},
}
# There is no canary here, and a new backend is judged for longer than the test takes.
JUDGED = r"penstock_(newcomers|canary)"
# Whatever fails on purpose, the engines stay.
PATIENT: dict[str, Any] = {"deep": {"interval_s": 600, "fall": 100}}


async def chat(penstock: Penstock, tenant: str, model: str, who: str) -> None:
    """A stream to its end, whatever becomes of it."""
    asked = CHAT | {
        "model": model,
        "messages": [{"role": "user", "content": TEXT + who}],
        "stream": True,
        "prompt_cache_key": who,
    }
    with contextlib.suppress(aiohttp.ClientError):
        await ask(penstock, CHATS, asked, **KEYS[tenant])


async def client(penstock: Penstock, number: int) -> None:
    """One request after the other. Each client has a session, and some share one."""
    while True:
        await chat(penstock, "research", "sim-model", f"s{number % SESSIONS}")


async def flood(penstock: Penstock) -> None:
    """More than its budget allows."""
    while True:
        await chat(penstock, "flood", "sim-model", "flood")
        await asyncio.sleep(0.1)


async def leaving(penstock: Penstock) -> None:
    """A client that waits for nothing."""
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.03):
                await chat(penstock, "research", "sim-model", "leaving")
        await asyncio.sleep(0.2)


async def failing(penstock: Penstock, server: SimServer) -> None:
    """Requests to a backend of which one fails, and one breaks off, now and then."""
    while True:
        for fault in ("internal_error", "cut_mid_stream", None):
            server.faults.clear()
            if fault is not None:
                server.faults.set(fault, path=CHATS)
            await chat(penstock, "research", "solo", "solo")
        await asyncio.sleep(0.1)


async def dying(penstock: Penstock, process: SimProcess) -> None:
    """A server that is killed, is out for some looks, and comes back to work."""
    await asyncio.sleep(4.0)
    await process.kill()
    await penstock.until(lambda told: any(each["state"] == "ejected" for each in told), 10)
    await asyncio.sleep(2.0)
    await process.start()
    await asyncio.Event().wait()


async def without_data(
    prometheus: Prometheus, queries: list[Asked], within_s: float
) -> list[Asked]:
    """The queries that found nothing in all this time."""
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + within_s
    while queries and loop.time() < ends_s:
        found = [await prometheus.points(each.expr, span_s=120) for each in queries]
        queries = [each for each, points in zip(queries, found, strict=True) if not points]
        await asyncio.sleep(0.5)
    return queries


@needs_prometheus
@pytest.mark.timeout(120)
async def test_every_panel_shows_data(
    simulate: Simulate,
    serve: Serve,
    sim_process: StartSim,
    exporter: FakeExporter,
    tmp_path: Path,
) -> None:
    exporter.tell(64.0)
    (steady,) = await simulate(profile=PROFILE)
    killed = await sim_process("--profile", PROFILE)
    (solo,) = await simulate(model="solo")
    backends = [
        {"name": "steady", "url": steady.url, "gpu_metrics_url": exporter.url},
        {"name": "killed", "url": killed.url},
    ]
    # Two requests at each, so that others wait.
    chat = {"policy": "session", "max_requests": 2, "cost_per_hour": 36.0, "backends": backends}
    pools = [{"name": "chat", **chat}, pool_of("solo", {"solo": solo})]
    penstock = await serve(
        [steady.url, killed.url, solo.url], pools=pools, health=PATIENT, at_rest=False, **CONFIG
    )
    # Only a certificate of its own has an end.
    tls = {"host": "127.0.0.1", "port": 0, "tls": issue(tmp_path).settings}
    other = await serve([solo.url], listen=tls)
    queries = [*asked(rate="10s", span="30s")]
    one_pool = asked(pool="chat", rate="10s", span="30s")
    queries += [each._replace(place=f"{each.place}, of one pool") for each in one_pool]
    queries = [each for each in queries if not re.search(JUDGED, each.expr)]
    assert len(queries) > 150
    clients = [client(penstock, number) for number in range(CLIENTS)]
    others = [flood(penstock), leaving(penstock), failing(penstock, solo), dying(penstock, killed)]
    async with (
        Prometheus(tmp_path) as prometheus,
        going_on(*clients, *others),
    ):
        prometheus.scrapes(penstock.admin_port, other.admin_port)
        empty = await without_data(prometheus, queries, within_s=75)
    assert not empty, "no data:\n" + "\n".join(f"{each.place}\n{each.expr}" for each in empty)
