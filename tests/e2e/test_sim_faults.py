"""Every fault of the simulated server, seen from a raw socket."""

import json
import socket
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import aiohttp
import pytest

from penstock.bench.sim.server import SimServer
from penstock.bench.sim.text import expected
from tests.e2e.tls import post
from tests.e2e.wire import RawClient

pytestmark = pytest.mark.once


def posts(path: str, body: dict[str, Any], *, close: bool = True) -> bytes:
    return post(path, body, *([b"Connection: close"] * close))


CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "stream": True}
PROMPT = {"prompt": "hi", "max_tokens": 5, "stream": True}
HEAD_END = b"\r\n\r\n"
LAST_CHUNK = b"\r\n0\r\n\r\n"


@pytest.fixture
async def server() -> AsyncIterator[SimServer]:
    server = await SimServer(profile="instant").start()
    yield server
    await server.stop()
    assert server.engine.idle


@pytest.fixture
async def client(server: SimServer) -> RawClient:
    return await RawClient.open(server.port)


def deltas(raw: bytes) -> int:
    return raw.count(b'"finish_reason":null,"stop_reason"') + raw.count(b'"length"')


async def test_refuse_closes_the_port_and_clearing_opens_it_again(server: SimServer) -> None:
    for _ in range(3):
        server.faults.set("refuse")
        with pytest.raises(ConnectionRefusedError):
            await RawClient.open(server.port)
        server.faults.clear("refuse")
        client = await RawClient.open(server.port)
        await client.send(posts("/v1/completions", PROMPT))
        assert (await client.rest()).endswith(LAST_CHUNK)
        client.close()


async def test_a_port_that_refuses_is_taken_by_nobody_else(server: SimServer) -> None:
    server.faults.set("refuse")
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", server.port))
    await server.stop()
    with socket.socket() as other:
        other.bind(("127.0.0.1", server.port))


async def test_hang_accept_reads_nothing(server: SimServer) -> None:
    server.faults.set("hang_accept", times=1)
    deaf, well = await RawClient.open(server.port), await RawClient.open(server.port)
    await deaf.send(posts("/v1/completions", PROMPT))
    await well.send(posts("/v1/completions", PROMPT))
    assert (await well.rest()).endswith(LAST_CHUNK)
    assert await deaf.silent()
    assert len(server.seen) == 1
    deaf.close()
    well.close()


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("rst", [False, True])
async def test_cut_mid_stream(server: SimServer, client: RawClient, tokens: int, rst: bool) -> None:
    server.faults.set("cut_mid_stream", tokens=tokens, rst=rst)
    await client.send(posts("/v1/completions", PROMPT))
    got = await client.rest()
    assert deltas(got) == tokens
    assert not got.endswith(LAST_CHUNK)
    assert client.was_reset == rst
    assert server.engine.idle
    assert (server.engine.aborted_total, server.client_aborts_total) == (1, 0)


async def test_cut_mid_body_of_an_unstreamed_answer(server: SimServer, client: RawClient) -> None:
    server.faults.set("cut_mid_stream")
    await client.send(posts("/v1/completions", {**PROMPT, "stream": False}))
    head, _, body = (await client.rest()).partition(HEAD_END)
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    assert len(body) == length // 2


async def test_health_faults(server: SimServer) -> None:
    async with aiohttp.ClientSession(server.url) as client:
        server.faults.set("health_503", times=1)
        for status in (503, 200):
            async with client.get("/health") as response:
                assert response.status == status
        server.faults.set("health_hang")
        with pytest.raises(TimeoutError):
            await client.get("/health", timeout=aiohttp.ClientTimeout(0.05))
        async with client.post("/v1/completions", json=PROMPT) as response:
            assert (await response.text()).endswith("[DONE]\n\n")


async def test_unsolicited_bytes_come_on_the_idle_connection(
    server: SimServer, client: RawClient
) -> None:
    server.faults.set("unsolicited", delay_s=0.02)
    await client.send(posts("/v1/completions", PROMPT, close=False))
    assert (await client.until(LAST_CHUNK)).startswith(b"HTTP/1.1 200 OK")
    assert (await client.until(b"second answer")).startswith(b"HTTP/1.1 200 OK")


async def test_faults_of_whole_streams(server: SimServer) -> None:
    async def stream(path: str, body: dict[str, Any]) -> bytes:
        with closing(await RawClient.open(server.port, posts(path, body))) as client:
            return await client.rest()

    server.faults.set("keep_alive", every_s=0.005)
    # 100,000 tokens at 10 million a second: 10 ms until the first token.
    got = await stream("/v1/completions", {**PROMPT, "prompt": "x" * 400_000})
    queued, _, rest = got.partition(b"data: ")
    assert b"e\r\n: keep-alive\n\n\r\n" in queued
    assert b": keep-alive" not in rest
    server.faults.clear()
    for tokens in (2, 5, 9):
        server.faults.set("multi_token", tokens=tokens)
        got = await stream("/v1/completions", PROMPT)
        events = [json.loads(line[6:]) for line in got.splitlines() if line.startswith(b"data: {")]
        assert len(events) == -(-5 // tokens)
        assert "".join(event["choices"][0]["text"] for event in events) == expected("hi", 5)
    server.faults.clear()
    for at_byte in (0, 1, 7, 1_000):
        server.faults.set("split", at_byte=at_byte, delay_s=0.002)
        got = await stream("/v1/completions", PROMPT)
        assert deltas(got) == 5
        assert got.endswith(b"data: [DONE]\n\n" + LAST_CHUNK)
    server.faults.clear()
    server.faults.set("crlf")
    got = await stream("/v1/messages", CHAT)
    assert b"event: message_stop\r\ndata: {" in got
    assert b"\n" not in got.replace(b"\r\n", b"")


async def test_faults_are_set_and_cleared_over_http(server: SimServer) -> None:
    async with aiohttp.ClientSession(server.url) as client:
        order = {"set": [{"kind": "busy", "times": 2}, {"kind": "crlf"}]}
        async with client.post("/sim/faults", json=order) as response:
            active = (await response.json())["faults"]
        assert [(fault["kind"], fault["times"]) for fault in active] == [
            ("busy", 2),
            ("crlf", None),
        ]
        async with client.post("/v1/completions", json=PROMPT) as response:
            assert response.status == 503
        async with client.get("/sim/state") as response:
            assert (await response.json())["faults"][0]["times"] == 1
        async with client.post("/sim/faults", json={"clear": True}) as response:
            assert (await response.json())["faults"] == []
        async with client.post("/sim/faults", json={"set": [{"kind": "none"}]}) as response:
            assert response.status == 400


@pytest.mark.parametrize("rst", [False, True])
async def test_dropping_all_connections_ends_their_streams(
    server: SimServer, client: RawClient, rst: bool
) -> None:
    server.faults.set("hang_mid_stream", tokens=1)
    await client.send(posts("/v1/completions", PROMPT))
    assert deltas(await client.until(b"\n\n\r\n")) == 1
    server.drop_connections(rst=rst)
    assert await client.rest() == b""
    assert client.was_reset == rst
    assert server.engine.idle
