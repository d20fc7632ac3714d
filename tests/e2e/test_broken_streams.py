"""Failures after the first token: told, and never like an end; and long waits for it."""

import asyncio
import time

import aiohttp
import orjson
import pytest

from penstock.bench.sim.text import expected
from tests.e2e.answers import BODIES, COMPLETIONS, ENDS, Got, ask, asked, text_of
from tests.e2e.process import Serve, Simulate

CHATS = "/v1/chat/completions"
every_dialect = pytest.mark.parametrize("path", BODIES)


# After the first token -------------------------------------------------------------------------


def assert_broken(path: str, got: Got) -> None:
    """The dialect's error event is the last thing said, and nothing looks like an end."""
    assert got.status == 200
    assert not got.ended
    assert b"[DONE]" not in got.body
    assert got.body.endswith(b"}\n\n")
    event = got.body.rstrip().rpartition(b"\n\n")[2]
    told = got.last_event
    if path == "/v1/messages":
        assert event.startswith(b"event: error\ndata: ")
        assert told["type"] == "error"
        assert told["error"].keys() == {"type", "message"}
    elif path == "/v1/responses":
        assert event.startswith(b"event: error\ndata: ")
        assert (told["type"], told["code"]) == ("error", "stream_broken")
    else:
        assert event.startswith(b"data: ")
        assert told["error"]["code"] == "stream_broken"


@every_dialect
async def test_a_stream_cut_midway_is_said_to_be_broken(
    simulate: Simulate, serve: Serve, path: str
) -> None:
    servers = await simulate(2)
    penstock = await serve(servers)
    for server in servers:
        server.faults.set("cut_mid_stream", tokens=3)
    got = await ask(penstock, path, stream=True)
    assert_broken(path, got)
    for server in servers:
        server.faults.set("cut_mid_stream", tokens=3, rst=True)
    assert_broken(path, await ask(penstock, path, stream=True))
    assert asked(servers) == 2
    got = await ask(penstock, path, stream=True, http=b"1.0")
    assert got.reset
    for server in servers:
        server.faults.clear()
    got = await ask(penstock, path, stream=True, http=b"1.0")
    assert not got.reset
    assert not got.header(b"transfer-encoding")
    assert got.body.endswith(ENDS[path])


@pytest.mark.parametrize("path", [path for path in BODIES if path != "/v1/responses"])
async def test_a_stream_given_up_midway_is_said_to_be_broken(
    simulate: Simulate, serve: Serve, path: str
) -> None:
    """Not responses: there vLLM calls it "completed"."""
    servers = await simulate(2, profile="steady-50")
    penstock = await serve(servers)
    for server in servers:
        server.faults.set("abort_mid_stream", tokens=3)
    assert_broken(path, await ask(penstock, path, stream=True))
    got = await ask(penstock, path, stream=False)  # nothing was said yet: both were tried
    assert got.status == 502
    assert asked(servers) == 3
    assert 'penstock_stream_failures_total{reason="abort"} 1.0' in await penstock.metrics()


async def test_silence_after_the_first_token(simulate: Simulate, serve: Serve) -> None:
    (server,) = await simulate()
    penstock = await serve([server], timeouts={"idle_s": 0.3})
    server.faults.set("hang_mid_stream", tokens=3)
    began_s = time.monotonic()
    got = await ask(penstock, stream=True)
    assert 0.25 < time.monotonic() - began_s < 1.0
    assert_broken(COMPLETIONS, got)
    assert text_of(got.body) == expected("Once upon a time", 3)
    async with asyncio.timeout(1):
        while not server.engine.idle:
            await asyncio.sleep(0.01)


async def test_a_silent_stream_gets_pings_and_goes_on(simulate: Simulate, serve: Serve) -> None:
    """Its engine is well, so it may be silent for long. Its client leaves in the end."""
    (server,) = await simulate()
    penstock = await serve([server], timeouts={"hold_s": 0.5})
    server.faults.set("hang_mid_stream", tokens=3, path=CHATS)
    url = f"{penstock.url}{CHATS}"
    body = {"model": "sim-model", "messages": [{"role": "user", "content": "x"}], "stream": True}
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
        pings = 0
        async with asyncio.timeout(10):
            while pings < 3:
                line = await answer.content.readline()
                assert line
                assert b"error" not in line
                pings += line == b": ping\n"


# Waiting for the first token -------------------------------------------------------------------


async def test_a_backend_that_never_answers(simulate: Simulate, serve: Serve) -> None:
    servers = await simulate(2)
    limits = {"first_byte_s": 0.2, "first_byte_s_per_1k_tokens": 0}
    penstock = await serve(servers, timeouts=limits, pool={"policy": "round_robin"})
    for fault in ("hang_before_headers", "hang_after_headers"):
        for stream in (True, False):
            # Not of completions, which is what the deep probe asks for that a failure brings.
            servers[0].faults.set(fault, times=1, path=CHATS)
            attempts = []
            for _ in range(3):
                got = await ask(penstock, CHATS, stream=stream, max_tokens=1)
                assert got.status == 200
                attempts.append(got.header(b"x-penstock-attempts"))
            assert attempts.count(b"2") == 1
    for server in servers:
        server.faults.set("hang_before_headers")
    for stream in (True, False):
        began_s = time.monotonic()
        got = await ask(penstock, stream=stream, max_tokens=1)
        assert 0.35 < time.monotonic() - began_s < 1.5
        assert (got.status, orjson.loads(got.body)["error"]["code"]) == (504, "backend_timeout")


@every_dialect
async def test_a_held_stream_still_fails_over(simulate: Simulate, serve: Serve, path: str) -> None:
    """The 200 and a ping go out after `hold_s`; the tokens are another backend's."""
    servers = await simulate(2)
    limits = {"hold_s": 0.2, "first_byte_s": 0.5, "first_byte_s_per_1k_tokens": 0}
    penstock = await serve(servers, timeouts=limits, pool={"policy": "round_robin"})
    servers[0].faults.set("hang_after_headers", times=1)
    url, body = penstock.url + path, BODIES[path] | {"stream": True}
    held = 0
    async with aiohttp.ClientSession() as session:
        for _ in range(2):
            began_s = time.monotonic()
            async with session.post(url, json=body) as answer:
                assert answer.status == 200
                assert answer.content_type == "text/event-stream"
                first = await answer.content.readline()
                first_s = time.monotonic() - began_s
                rest = await answer.content.read()
            if first.startswith(b":"):
                held += 1
                assert first == b": ping\n"
                assert 0.15 < first_s < 0.45
                assert 0.45 < time.monotonic() - began_s < 1.0
                first = rest.lstrip()
            assert first.startswith((b"data: {", b"event: "))
            assert rest.endswith(ENDS[path])
            assert b"error" not in rest.replace(b'"error":null', b"")
    assert held == 1


@every_dialect
async def test_a_held_stream_that_nobody_can_serve(
    simulate: Simulate, serve: Serve, path: str
) -> None:
    servers = await simulate(2)
    limits = {"hold_s": 0.1, "first_byte_s": 0.2, "first_byte_s_per_1k_tokens": 0}
    penstock = await serve(servers, timeouts=limits)
    for server in servers:
        server.faults.set("hang_before_headers")
    got = await ask(penstock, path, stream=True)
    assert (got.status, got.ended) == (200, False)
    assert got.body.startswith(b": ping\n\n")
    told = got.last_event
    if path == "/v1/messages":
        assert told["error"]["type"] == "timeout_error"
    else:
        assert told.get("error", told)["code"] == "backend_timeout"
