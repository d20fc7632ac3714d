"""Backends that die, stop, hang, flap and return, under load and at the default settings."""

import asyncio
import signal
from collections.abc import AsyncIterator
from itertools import pairwise
from time import monotonic
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from penstock.bench.sim.server import SimServer
from tests.e2e.answers import ask
from tests.e2e.process import Penstock, Serve, Simulate
from tests.e2e.sim_process import SimProcess

DEFAULTS: dict[str, Any] = {
    "interval_s": 2,
    "slow_start_s": 30,
    "deep": {"interval_s": 10, "timeout_s": 4, "fall": 2},
}
BODY = {"model": "sim-model", "prompt": "hello", "max_tokens": 4}


@pytest.fixture
async def sim_processes() -> AsyncIterator[list[SimProcess]]:
    servers = [SimProcess("--profile", "instant") for _ in range(3)]
    try:
        for server in servers:
            await server.start()
        yield servers
    finally:
        for server in servers:
            await server.kill()


class Load:
    """Requests without a pause from some workers, until the block ends; streamed and plain."""

    def __init__(self, penstock: Penstock, workers: int = 6) -> None:
        self._penstock = penstock
        self._workers = workers
        self._over = False
        self.served: list[tuple[str, int]] = []  # backend, attempts
        self.errors: list[str] = []

    async def __aenter__(self) -> "Load":
        self._session = aiohttp.ClientSession()
        self._tasks = [asyncio.create_task(self._ask(number)) for number in range(self._workers)]
        return self

    async def __aexit__(self, error: object, *_: object) -> None:
        self._over = True
        if error is not None:  # what hangs would hide the error
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=error is not None)
        await self._session.close()

    async def _ask(self, number: int) -> None:
        body = BODY | {"stream": bool(number % 2)}
        while not self._over:
            try:
                async with self._session.post(
                    f"{self._penstock.url}/v1/completions", json=body
                ) as answer:
                    text = await answer.text()
            except aiohttp.ClientError as error:
                self.errors.append(repr(error))
                continue
            if answer.status != 200 or '"error":{' in text:
                self.errors.append(f"{answer.status} {text[-300:]}")
            headers = answer.headers
            backend = headers.get("x-penstock-backend", "")
            self.served.append((backend, int(headers.get("x-penstock-attempts", 0))))
            await asyncio.sleep(0.01)


async def state_of(penstock: Penstock, index: int = 0) -> str:
    return str((await penstock.backends())[index]["state"])


async def test_a_killed_server_is_out_after_one_request(
    sim_processes: list[SimProcess], serve: Serve
) -> None:
    penstock = await serve([server.url for server in sim_processes], health=DEFAULTS)
    await sim_processes[0].kill()
    async with Load(penstock, workers=1) as load:
        await penstock.until(lambda listing: listing[0]["state"] == "ejected", 5)
        await asyncio.sleep(0.3)
    assert load.errors == []
    assert sum(attempts == 2 for _, attempts in load.served) <= 1
    assert (await penstock.backends())[0]["reason"] == "unreachable"
    await sim_processes[0].start()
    await penstock.until(lambda listing: listing[0]["state"] == "warming", 10)


async def test_a_stopped_server_is_out_after_fall_probes_and_comes_back(
    sim_processes: list[SimProcess], serve: Serve
) -> None:
    penstock = await serve(
        [server.url for server in sim_processes],
        health=DEFAULTS | {"slow_start_s": 2},
        timeouts={"first_byte_s": 60},
    )
    async with Load(penstock):
        sim_processes[0].signal(signal.SIGSTOP)
        began_s = monotonic()
        # A turn of at most 2.4 s, then three probes of 1 s with pauses of at most 0.6 s.
        await penstock.until(lambda listing: listing[0]["state"] == "ejected", 8)
        assert monotonic() - began_s > 2.0  # not by one failure
        sim_processes[0].signal(signal.SIGCONT)
        await penstock.until(lambda listing: listing[0]["state"] == "warming", 15)
        await penstock.until(lambda listing: listing[0]["state"] == "ready", 10)


async def test_a_zombie_is_out_within_15_s(simulate: Simulate, serve: Serve) -> None:
    """Its /health and /v1/models are perfect; it only does not generate.

    A probe of 4 s that is under way when it begins to hang sees the last tokens. Then a third one
    is needed, 5 s later. On a busy machine the last tokens may come so late that the next one sees
    them, too. So is another one after each pause of penstock, which its log tells.
    """
    servers: list[SimServer] = await simulate(3)
    penstock = await serve(servers, health=DEFAULTS)
    failed: set[float] = set()

    def ejected(listing: list[dict[str, Any]]) -> bool:
        probe = listing[0]["last_probe"].get("deep", {"passed": True})
        failed.update(() if probe["passed"] else (probe["at"],))
        return bool(listing[0]["state"] == "ejected")

    async with Load(penstock):
        servers[0].faults.set("hang_mid_stream")
        servers[0].faults.set("hang_before_headers")
        began_s = monotonic()
        await penstock.until(ejected, 30)
        out_s = monotonic() - began_s
        pauses = sum(b"slept_s=" in line or b"delayed_s=" in line for line in penstock.log)
        assert len(failed) <= 4 + pauses
        assert out_s < 15 + 5 * (len(failed) - 2) + 6 * pauses
        assert (await penstock.backends())[0]["reason"] == "hung"
        servers[0].faults.clear()
        servers[0].drop_connections()  # what hangs there already hangs for ever
        # Out for 10 s, with jitter 12; then two passes and a deep one.
        await penstock.until(lambda listing: listing[0]["state"] == "warming", 40)
    print(f"a zombie was out after {out_s:.1f} s")


async def test_a_draining_server_is_out_after_its_first_refusal(
    simulate: Simulate, serve: Serve
) -> None:
    """Its /health stays 200 and it fails requests within a millisecond."""
    servers: list[SimServer] = await simulate(2)
    penstock = await serve(servers, health=DEFAULTS | {"slow_start_s": 1})
    async with Load(penstock, workers=1) as load:
        servers[0].faults.set("draining")
        await penstock.until(lambda listing: listing[0]["state"] == "ejected", 5)
        await asyncio.sleep(2.5)  # live and ready probes pass meanwhile
        backend = (await penstock.backends())[0]
        assert (backend["state"], backend["reason"]) == ("ejected", "draining")
        servers[0].faults.clear()
        await penstock.until(lambda listing: listing[0]["state"] == "warming", 10)
        await penstock.until(lambda listing: listing[0]["state"] == "ready", 10)
    assert load.errors == []
    assert sum(attempts == 2 for _, attempts in load.served) == 1


async def test_a_flapping_server_loses_no_more_than_one_request_each_time(
    simulate: Simulate, serve: Serve
) -> None:
    servers: list[SimServer] = await simulate(4)
    penstock = await serve(servers, health=DEFAULTS)
    async with Load(penstock) as load:
        await penstock.until(lambda listing: listing[0]["requests_total"] > 10, 5)
        servers[0].faults.set("refuse")
        servers[0].drop_connections()
        await penstock.until(lambda listing: listing[0]["state"] == "ejected", 5)
        broken = len(load.errors)
        taken = [[each["requests_total"] for each in await penstock.backends()]]
        for _ in range(8):
            servers[0].faults.clear()
            await asyncio.sleep(1)
            servers[0].faults.set("refuse")
            servers[0].drop_connections()
            await asyncio.sleep(1)
            taken.append([each["requests_total"] for each in await penstock.backends()])
        servers[0].faults.clear()
    all_taken = sum(taken[-1]) - sum(taken[0])
    assert all_taken > 500
    by_round = [after[0] - before[0] for before, after in pairwise(taken)]
    print(f"a flapping server took {by_round} of {all_taken} requests")
    # It is back at once after its first end and 10 s after its second, then 20 s after. An end that
    # no request meets, as it got few, may pass unnoticed: then it is back once more.
    assert sum(map(bool, by_round)) <= 3
    assert sum(by_round) <= all_taken / 16  # an even share of two rounds of eight
    # It has one at a time, so it can break one each time it dies.
    assert len(load.errors) - broken <= sum(map(bool, by_round))


async def test_all_down_answers_at_once(simulate: Simulate, serve: Serve) -> None:
    servers: list[SimServer] = await simulate(2)
    penstock = await serve(servers, health=DEFAULTS)
    for server in servers:
        server.faults.set("refuse")
        server.drop_connections()
    took_s = []
    async with aiohttp.ClientSession() as session:
        for _ in range(20):
            began_s = monotonic()
            async with session.post(f"{penstock.url}/v1/completions", json=BODY) as answer:
                body = await answer.json()
                took_s.append(monotonic() - began_s)
                assert answer.status in (502, 503)
            if answer.status == 503:
                assert body["error"]["code"] == "no_backend"
                assert 1 <= int(answer.headers["Retry-After"]) <= 3
    assert answer.status == 503
    took_s.sort()
    assert took_s[len(took_s) // 2] < 0.05
    print(f"503 after {took_s[10] * 1000:.1f} ms (median), {took_s[-1] * 1000:.1f} ms at most")


async def test_a_zombie_that_answers_for_its_engine_is_out(
    simulate: Simulate, serve: Serve
) -> None:
    """Its API server counts tokens as fast as ever; nothing comes out of its engine."""
    servers: list[SimServer] = await simulate(2)
    penstock = await serve(
        servers, health=DEFAULTS | {"deep": {"interval_s": 1, "timeout_s": 0.5, "fall": 2}}
    )
    servers[0].faults.set("hang_before_headers", path="/v1/completions")
    async with Load(penstock, workers=4):
        async with aiohttp.ClientSession() as session:
            for _ in range(150):
                text = {"model": "sim-model", "prompt": "count me"}
                async with session.post(f"{penstock.url}/tokenize", json=text) as answer:
                    assert answer.status == 200
                if await state_of(penstock) == "ejected":
                    break
                await asyncio.sleep(0.1)
        assert await state_of(penstock) == "ejected"
        servers[0].faults.clear()
        servers[0].drop_connections()


async def test_a_server_with_a_key_of_its_own_serves(simulate: Simulate, serve: Serve) -> None:
    """Its models are not told to us; clients have the key."""
    (server,) = await simulate(1, api_key="k-1")
    penstock = await serve([server], health=DEFAULTS)
    await penstock.until(lambda listing: listing[0]["state"] == "ready", 5)
    async with (
        aiohttp.ClientSession(headers={"authorization": "Bearer k-1"}) as session,
        session.post(f"{penstock.url}/v1/completions", json=BODY) as answer,
    ):
        assert answer.status == 200


async def test_a_busy_backend_is_not_ill(simulate: Simulate, serve: Serve) -> None:
    """503 from a full queue sends requests elsewhere for a second and ejects nobody."""
    servers: list[SimServer] = await simulate(2)
    penstock = await serve(servers, health=DEFAULTS)
    servers[0].faults.set("busy")
    async with Load(penstock) as load:
        await penstock.until(lambda listing: listing[0]["requests_total"] >= 1, 10)
        served = len(load.served)
        await penstock.until(lambda _: len(load.served) > served + 50, 10)
    assert load.errors == []
    assert (await penstock.backends())[0]["failures_total"] == 0
    assert await state_of(penstock) == "ready"


async def test_a_failing_backend_is_out_and_the_last_one_serves_on(
    simulate: Simulate, serve: Serve
) -> None:
    servers: list[SimServer] = await simulate(2)
    penstock = await serve(servers, health=DEFAULTS)
    servers[0].faults.set("cut_before_headers")
    async with Load(penstock) as load:
        await penstock.until(lambda listing: listing[0]["state"] == "ejected", 10)
        # By its requests, or by the deep probe that two of them asked for.
        assert (await penstock.backends())[0]["reason"] in ("failing", "unreachable")
        servers[1].faults.set("cut_before_headers")
        await penstock.until(lambda listing: listing[1]["failures_total"] >= 20, 10)
        assert (await penstock.backends())[1]["state"] == "suspect"
        servers[1].faults.clear()
        await asyncio.sleep(0.3)  # for those that have met it already
        load.errors.clear()
        served = len(load.served)
        await penstock.until(lambda _: len(load.served) > served + 50, 10)
    assert load.errors == []
    assert (await penstock.backends())[1]["state"] in ("ready", "suspect")


async def test_requests_that_begin_during_a_scrape_are_nobody_elses(serve: Serve) -> None:
    """An engine's gauges are read some time after they were asked for."""
    asked, begun, read = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def metrics(_: web.Request) -> web.Response:
        asked.set()
        await begun.wait()
        return web.Response(text='vllm:num_requests_running{engine="0"} 1.0\n')

    async def completions(_: web.Request) -> web.Response:
        begun.set()
        await read.wait()
        return web.json_response({"choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]})

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "sim-model"}]})

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_post("/v1/completions", completions)
    app.router.add_get("/{any:.*}", models)
    async with TestServer(app) as server:
        deep = {"interval_s": 600}
        penstock = await serve([str(server.make_url("/"))], health={"timeout_s": 4, "deep": deep})
        await asked.wait()
        request = asyncio.create_task(ask(penstock, "/v1/completions"))
        await penstock.until(lambda listing: listing[0]["engine"] is not None, 5)
        (backend,) = await penstock.backends()
        read.set()
        assert backend["requests_in_flight"] == backend["engine"]["running"] == 1
        assert backend["engine"]["hidden_requests"] == 0.0
        assert (await request).status == 200
