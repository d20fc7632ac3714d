"""Backends that die, stop, hang, refuse and return, and fleets of many."""

import asyncio
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack
from time import monotonic
from typing import Any

import aiohttp
import pytest

from tests.e2e.answers import ask
from tests.e2e.forked import SimProcess
from tests.e2e.process import Fleet, Penstock, Serve, Simulate
from tests.e2e.raw_backend import RawBackend, RawBackends, answer
from tests.e2e.request import Got as Answered
from tests.e2e.request import ask as ask_once

DEFAULTS: dict[str, Any] = {
    "interval_s": 2,
    "slow_start_s": 30,
    "deep": {"interval_s": 10, "timeout_s": 4, "fall": 2},
}
CHATS = "/v1/chat/completions"
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


async def test_a_stopped_server_is_ejected_and_comes_back(
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


async def test_an_engine_that_hangs_behind_its_api_is_ejected(fleet: Fleet) -> None:
    """Its API server counts tokens as fast as ever; nothing comes out of its engine."""
    servers, penstock = await fleet(
        2, health=DEFAULTS | {"deep": {"interval_s": 1, "timeout_s": 0.5, "fall": 2}}
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


async def test_a_failing_backend_is_out_and_the_last_serves(fleet: Fleet) -> None:
    servers, penstock = await fleet(2, health=DEFAULTS)
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


async def test_requests_do_not_wait_for_an_engine_that_hangs(
    simulate: Simulate, serve: Serve
) -> None:
    servers = await simulate(3)
    deep = {"interval_s": 600, "timeout_s": 0.4}
    penstock = await serve(servers, pool={"policy": "round_robin"}, health={"deep": deep})
    servers[0].faults.set("hang_before_headers")
    answers = await asyncio.gather(*[ask_long(penstock, number) for number in range(9)])
    assert [got.status for got in answers] == [200] * 9
    assert 'penstock_attempts_total{reason="hung"}' in await penstock.metrics()


async def ask_long(penstock: Penstock, number: int) -> Answered:
    """Patient enough for a look each five seconds."""
    body = BODY | {"prompt": f"number {number}"}
    async with asyncio.timeout(14):
        return await ask_once(penstock, "/v1/completions", body)


async def test_unreachable_and_unresolved_are_told_apart(simulate: Simulate, serve: Serve) -> None:
    servers = await simulate(1)
    with socket.socket() as sock:  # bound, but nobody listens
        sock.bind(("127.0.0.1", 0))
        urls = [
            servers[0].url,
            f"http://127.0.0.1:{sock.getsockname()[1]}",
            "http://no-such-host.invalid:8000",
        ]
        penstock = await serve(urls, ready=1)
        await penstock.until(
            lambda listing: (
                [each["reason"] for each in listing] == ["", "unreachable", "unresolved"]
            ),
            5,
        )
    assert {each["state"] for each in (await penstock.backends())[1:]} == {"starting"}
    log = b"".join(penstock.log)
    assert log.count(b"name=b1 reason=unreachable") == 1
    assert log.count(b"name=b2 reason=unresolved") == 1


async def test_many_backends_start_though_a_third_hang(
    serve: Serve, raw_backends: RawBackends
) -> None:
    urls = [backend.url for backend in await raw_backends(80)]
    with ExitStack() as stack:
        for _ in range(40):  # the kernel takes their connections, and nobody answers
            listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            urls.append(f"http://127.0.0.1:{listening.getsockname()[1]}")
        penstock = await serve(urls, ready=0, health={"interval_s": 0.2, "timeout_s": 1})
        await penstock.until_ready(80, 15)
        assert b"ejected" not in b"".join(penstock.log)


REQUESTS = 150


async def ask_many(penstock: Penstock) -> tuple[Counter[int], Counter[str]]:
    statuses: Counter[int] = Counter()
    backends: Counter[str] = Counter()
    for number in range(REQUESTS):
        got = await ask(penstock, prompt=f"number {number}", max_tokens=2, stream=True)
        statuses[got.status] += 1
        backends[got.header(b"x-penstock-backend").decode()] += 1
    return statuses, backends


async def test_a_backend_that_refuses_the_pools_key_is_out(fleet: Fleet) -> None:
    servers, penstock = await fleet(
        4, api_key="right", pool={"api_key": "right", "forward_authorization": "pool"}, health={}
    )
    servers[0].api_key = "another"
    statuses, backends = await ask_many(penstock)
    assert statuses == {200: REQUESTS}
    assert backends["b0"] == 0
    await penstock.until(
        lambda listing: (listing[0]["state"], listing[0]["reason"]) == ("ejected", "refusing"), 5
    )


async def test_a_key_refused_from_the_start_is_reported(simulate: Simulate, serve: Serve) -> None:
    right, other = await simulate(1, api_key="right"), await simulate(1, api_key="other")
    penstock = await serve([*right, *other], ready=1, pool={"api_key": "right"})
    await penstock.until(
        lambda listing: (listing[1]["state"], listing[1]["reason"]) == ("starting", "refusing"), 5
    )


REFUSAL = b'{"error": {"message": "no", "type": "BadRequestError", "code": 400}}'
EVENT = b"data: %b\n\n" % REFUSAL
PAGE = b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b"
USELESS = {
    "refusals": answer(REFUSAL, status=b"400 Bad Request"),
    "login pages": PAGE % (b"200 OK", b"text/html", 5, b"login"),
    "error events": PAGE % (b"200 OK", b"text/event-stream", len(EVENT), EVENT),
    "odd failures": PAGE % (b"520 Odd", b"text/html", 2, b"no"),
}


@pytest.mark.parametrize("kind", USELESS)
async def test_fast_useless_answers_attract_no_requests(
    simulate: Simulate, serve: Serve, raw_backend: RawBackend, kind: str
) -> None:
    raw_backend.always = lambda _: (USELESS[kind],)
    penstock = await serve([raw_backend, *await simulate(3)])
    statuses, backends = await ask_many(penstock)
    assert backends["b0"] <= 20
    if kind == "odd failures":  # they go to another
        assert (statuses, backends["b0"]) == ({200: REQUESTS}, 0)
