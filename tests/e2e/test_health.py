"""Backends that die, stop, hang, refuse and return, and fleets of many."""

import asyncio
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any

import aiohttp
import pytest

from tests.e2e.answers import ask
from tests.e2e.forked import SimProcess
from tests.e2e.process import Fleet, Penstock, Serve, Simulate

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
