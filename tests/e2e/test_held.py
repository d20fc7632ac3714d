"""Requests that wait until a backend can serve, before a real server that dies and comes back."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.e2e.process import Penstock, Serve
from tests.e2e.request import CHAT, MESSAGES, Got, ask
from tests.e2e.sim_process import SimProcess

STREAM = CHAT | {"stream": True}


@pytest.fixture
async def server() -> AsyncIterator[SimProcess]:
    server = SimProcess("--profile", "instant")
    await server.start()
    yield server
    await server.kill()


async def chat(penstock: Penstock, **headers: str) -> Got:
    return await ask(penstock, "/v1/chat/completions", STREAM, **headers)


async def parked(penstock: Penstock) -> str:
    """The number of requests that wait for a backend, as an autoscaler reads it."""
    found = [line for line in (await penstock.metrics()).splitlines() if "held_requests{" in line]
    return found[0].split()[1]


async def test_a_restart_of_the_only_backend_is_a_pause(server: SimProcess, serve: Serve) -> None:
    penstock = await serve([server.url], admission={"hold_for_backend_s": 30})
    await server.kill()
    answers = [asyncio.create_task(chat(penstock)) for _ in range(20)]
    await asyncio.sleep(0.5)
    assert not any(answer.done() for answer in answers)
    assert await parked(penstock) == "20.0"
    await server.start()
    for got in await asyncio.gather(*answers):
        assert got.status == 200
        assert got.body.endswith(b"data: [DONE]\n\n")
    assert await parked(penstock) == "0.0"


async def test_so_it_is_for_a_request_that_the_backend_died_with(serve: Serve) -> None:
    server = SimProcess("--profile", "8b-1xa100", "--speedup", "0.05")
    await server.start()
    penstock = await serve([server.url], admission={"hold_for_backend_s": 30})
    long = CHAT | {"stream": True, "max_tokens": 1, "messages": MESSAGES * 200}
    answer = asyncio.create_task(ask(penstock, "/v1/chat/completions", long))
    await penstock.until(lambda listing: listing[0]["queued_prefill_tokens"] > 0, 5)
    await server.kill()
    await penstock.until(lambda listing: listing[0]["state"] == "ejected", 10)
    await server.start()
    got = await answer
    await server.kill()
    assert (got.status, got.headers["x-penstock-attempts"]) == (200, "2")


async def test_requests_before_the_first_start_wait_for_it(
    server: SimProcess, serve: Serve
) -> None:
    await server.kill()
    penstock = await serve([server.url], ready=0, admission={"hold_for_backend_s": 30})
    answer = asyncio.create_task(chat(penstock))
    await asyncio.sleep(0.5)
    assert not answer.done()
    await server.start()
    assert (await answer).status == 200


async def test_who_waits_too_long_is_told_so_and_who_leaves_is_forgotten(
    server: SimProcess, serve: Serve
) -> None:
    penstock = await serve([server.url], admission={"hold_for_backend_s": 1.5})
    await server.kill()
    leaving = [asyncio.create_task(chat(penstock)) for _ in range(10)]
    await asyncio.sleep(0.5)
    for task in leaving:
        task.cancel()
    got = await chat(penstock)
    assert (got.status, got.json["error"]["code"]) == (503, "no_backend")
    assert "retry-after" in got.headers
    assert await parked(penstock) == "0.0"


async def test_a_client_that_waits_for_less_is_told_at_its_time(
    server: SimProcess, serve: Serve
) -> None:
    penstock = await serve([server.url], admission={"hold_for_backend_s": 30})
    await server.kill()
    got = await chat(penstock, **{"x-request-timeout": "1"})
    assert got.status in (408, 429)
    assert got.headers["x-should-retry"] == "false"
