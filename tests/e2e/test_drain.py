"""From SIGTERM to the exit: told at once, nothing dropped in time, an end when time is up."""

import asyncio
import signal
import time
from typing import Any

import aiohttp
import orjson
import pytest

from penstock.bench.sim.text import expected
from tests.e2e.process import Fleet, Penstock, until
from tests.e2e.request import BODIES, stream

DONE = b"data: [DONE]\n\n"
# How an error begins where the dialect names its events.
EVENT_OF = {"/v1/responses": b"event: error\n"}


async def status(url: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status


async def until_refused(penstock: Penstock, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", penstock.port)
            except (ConnectionRefusedError, ConnectionResetError):  # reset: the queue was closed
                return
            writer.transport.abort()
            await asyncio.sleep(0.01)


async def exit_status(penstock: Penstock, within_s: float) -> int:
    async with asyncio.timeout(within_s):
        return await penstock.process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_drain_drops_nothing(fleet: Fleet, number: int) -> None:
    _, penstock = await fleet(1, profile="steady-50", drain={"grace_s": 0.5, "timeout_s": 5})
    idle, idle_writer = await asyncio.open_connection("127.0.0.1", penstock.port)
    plain = asyncio.create_task(_plain(penstock, max_tokens=50))
    async with stream(penstock, max_tokens=60) as answer:
        began_s = time.monotonic()
        penstock.process.send_signal(number)
        await asyncio.sleep(0.05)
        assert await status(f"{penstock.admin_url}/readyz") == 503
        assert await status(f"{penstock.admin_url}/livez") == 200
        assert await status(f"{penstock.url}/health") == 503
        async with stream(penstock, max_tokens=2) as late:  # the grace is for those
            assert (await late.read()).endswith(DONE)
            assert late.headers.get("connection") == "close"
        await until_refused(penstock, 2)
        assert 0.4 < time.monotonic() - began_s < 2.5  # the grace, on a busy machine too
        assert await asyncio.wait_for(idle.read(), 2.0) == b""
        idle_writer.transport.abort()
        assert penstock.process.returncode is None
        text = await answer.read()
        assert text.endswith(DONE)
        assert text.count(b'"text":') == 60
    assert await plain == expected("Once upon a time", 50)
    assert await exit_status(penstock, 1.5) == 0


async def _plain(penstock: Penstock, **fields: Any) -> Any:
    async with stream(penstock, stream=False, **fields) as answer:
        assert answer.headers.get("connection") == "close"  # though asked for before the signal
        return (await answer.json())["choices"][0]["text"]


async def test_an_idle_proxy_exits_at_once(fleet: Fleet) -> None:
    """A kept connection on which a request may be on its way is given a second."""
    _, penstock = await fleet(drain={"grace_s": 0, "timeout_s": 30})
    async with aiohttp.ClientSession() as session:  # keeps its connection open
        async with session.get(f"{penstock.url}/health") as answer:
            assert answer.status == 200
        began_s = time.monotonic()
        assert await penstock.stop() == 0
        assert time.monotonic() - began_s < 3.0
    await until(lambda: b"drain over, every request has ended" in penstock.log[-1], 2)


async def test_kept_connections_get_no_new_request(fleet: Fleet) -> None:
    """Once the grace is over, what is still open takes its answer and closes."""
    servers, penstock = await fleet(1, profile="steady-50")
    reader, writer = await asyncio.open_connection("127.0.0.1", penstock.port)
    body = b'{"prompt":"x","max_tokens":25}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    raw = head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    writer.write(raw)
    while not servers[0].engine.running:
        await asyncio.sleep(0.01)
    penstock.process.send_signal(signal.SIGTERM)
    await until_refused(penstock, 1)
    writer.write(raw)
    got = await asyncio.wait_for(reader.read(), 3)
    writer.transport.abort()
    assert got.startswith(b"HTTP/1.1 200 OK")
    assert got.count(b"HTTP/1.1 ") == 1
    assert len(servers[0].seen) == 1
    assert await exit_status(penstock, 1.5) == 0


async def test_a_drain_that_is_over_breaks_off(fleet: Fleet) -> None:
    drain = {"grace_s": 0, "timeout_s": 0.4}
    (server,), penstock = await fleet(profile="steady-50", drain=drain)
    async with stream(penstock) as answer:
        began_s = time.monotonic()
        penstock.process.send_signal(signal.SIGTERM)
        await until_refused(penstock, 1)
        assert penstock.process.returncode is None
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()
        assert time.monotonic() - began_s < 1.0
    assert await exit_status(penstock, 1.5) == 0
    assert server.engine.idle
    assert any(b"breaking off" in line for line in penstock.log)
    assert not any(b"every request has ended" in line for line in penstock.log)


async def test_a_second_signal_ends_the_grace(fleet: Fleet) -> None:
    _, penstock = await fleet(drain={"grace_s": 30, "timeout_s": 30})
    penstock.process.send_signal(signal.SIGTERM)
    await asyncio.sleep(0.05)
    assert await status(f"{penstock.admin_url}/readyz") == 503
    penstock.process.send_signal(signal.SIGTERM)
    assert await exit_status(penstock, 1.5) == 0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_a_second_signal_ends_streams_with_an_error(fleet: Fleet, path: str) -> None:
    _, penstock = await fleet(1, profile="steady-50")
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    body = BODIES[path] | {"stream": True, limit: 5_000}
    got = b""
    async with (
        aiohttp.ClientSession() as session,
        session.post(penstock.url + path, json=body) as answer,
    ):
        penstock.process.send_signal(signal.SIGTERM)
        await until_refused(penstock, 2)
        penstock.process.send_signal(signal.SIGTERM)
        cut = False
        try:
            async for piece in answer.content.iter_any():
                got += piece
        except aiohttp.ClientPayloadError:
            cut = True
        assert cut
    assert await exit_status(penstock, 3) == 0
    *events, last = got.removesuffix(b"\n\n").split(b"\n\n")
    assert last.startswith(EVENT_OF.get(path, b"data: "))
    data = orjson.loads(last[last.index(b"data: ") + 6 :])
    assert "shutting down" in data["error"]["message"]
    assert events
    assert not any(b"shutting down" in event for event in events)
