"""The simulated server's HTTP/1.1: framing, keep-alive, leaving clients, what it records."""

import asyncio
import json
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from hashlib import sha256

import aiohttp
import pytest

from penstock.bench.sim.server import SimServer

pytestmark = pytest.mark.once

SLOW = "default"
"""10 ms a token: long answers are still running when a test looks."""


@pytest.fixture
async def server() -> AsyncIterator[SimServer]:
    server = await SimServer(profile=SLOW, keep_alive_s=0.1).start()
    yield server
    assert server.engine.idle
    await server.stop()


def request(body: object, headers: str = "") -> bytes:
    raw = json.dumps(body).encode()
    return (
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(raw)}\r\n{headers}\r\n"
    ).encode() + raw


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


async def test_the_200_comes_before_anything_is_scheduled(server: SimServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    # 100,000 tokens take 10 s to prefill.
    writer.write(request({"prompt": [7] * 100_000, "stream": True}))
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 1)
    assert head.startswith(b"HTTP/1.1 200 OK\r\ndate: ")
    assert b"\r\nserver: uvicorn\r\n" in head
    assert b"\r\ntransfer-encoding: chunked\r\n" in head
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.05)
    writer.close()
    await until(lambda: server.engine.idle)


async def test_each_event_is_one_chunk(server: SimServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request({"prompt": "x", "stream": True, "max_tokens": 3}))
    await reader.readuntil(b"\r\n\r\n")
    chunks = []
    while size := int(await reader.readline(), 16):
        chunks.append(await reader.readexactly(size))
        assert await reader.readexactly(2) == b"\r\n"
    assert await reader.readexactly(2) == b"\r\n"
    assert len(chunks) == 4
    assert all(c.startswith(b"data: ") and c.endswith(b"}\n\n") for c in chunks[:3])
    assert chunks[3] == b"data: [DONE]\n\n"
    writer.close()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("prompt_tokens", [10, 100_000])
async def test_a_leaving_client_frees_the_engine(
    server: SimServer, stream: bool, prompt_tokens: int
) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request({"prompt": [7] * prompt_tokens, "stream": stream, "max_tokens": 9_999}))
    await until(lambda: server.engine.running == 1)
    writer.close()
    await until(lambda: server.engine.idle)
    assert server.engine.aborted_total == server.client_aborts_total == 1
    assert server.engine.kv_usage == 0.0


async def test_a_queued_client_that_leaves_frees_its_place() -> None:
    server = await SimServer(profile="small-kv").start()
    writers = []
    for _ in range(2):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request({"prompt": [7] * 8_000, "max_tokens": 100}))
        writers.append(writer)
    await until(lambda: (server.engine.running, server.engine.waiting) == (1, 1))
    writers[1].close()
    await until(lambda: (server.engine.running, server.engine.waiting) == (1, 0))
    writers[0].close()
    await server.stop()
    assert server.engine.idle


async def test_an_idle_connection_is_closed_after_the_keep_alive(server: SimServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for _ in range(2):
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


async def test_an_idle_connection_is_not_closed_before() -> None:
    server = await SimServer(keep_alive_s=60.0).start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.05)
    writer.close()
    await server.stop()


async def test_a_running_answer_outlives_the_keep_alive(server: SimServer) -> None:
    async with aiohttp.ClientSession(server.url) as client:
        body = {"prompt": "x", "max_tokens": 20}
        async with client.post("/v1/completions", json=body) as response:
            assert (await response.json())["usage"]["completion_tokens"] == 20


async def test_pipelined_requests_are_answered_in_order(server: SimServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request({"prompt": "x", "max_tokens": 2}) + b"GET /version HTTP/1.1\r\n\r\n")
    answers = await reader.read()  # until the idle close
    assert answers.index(b'"text_completion"') < answers.index(b'{"version":')
    writer.close()


async def test_connection_close_is_obeyed(server: SimServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request({"prompt": "x", "max_tokens": 2}, "Connection: close\r\n"))
    answer = await asyncio.wait_for(reader.read(), 5)
    assert b"\r\nconnection: close\r\n" in answer
    writer.close()


async def test_chunked_bodies_in_small_pieces(server: SimServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    body = b'{"prompt":"x","max_tokens":2}'
    raw = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    )
    raw += b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    for start in range(0, len(raw), 50):
        writer.write(raw[start : start + 50])
        await asyncio.sleep(0)
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert server.seen[-1].body == body
    writer.close()


async def test_garbage_gets_400_and_a_close(server: SimServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"NONSENSE\r\n\r\n")
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 400 Bad Request")
    writer.close()


async def test_requests_are_recorded_as_received(server: SimServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    raw = request({"prompt": "x", "max_tokens": 1}, "X-Odd-CASE: a  b\r\nX-Odd-CASE: c\r\n")
    writer.write(raw)
    await reader.readuntil(b"\r\n\r\n")
    async with aiohttp.ClientSession(server.url) as client, client.get("/sim/state") as response:
        state = await response.json()
    (seen,) = state["requests"]
    head, _, body = raw.partition(b"\r\n\r\n")
    line, *headers = head.decode().split("\r\n")
    assert seen["line"] == line
    assert [f"{name}: {value}" for name, value in seen["headers"]] == headers
    assert seen["body_sha256"] == sha256(body).hexdigest()
    assert state["requests_total"] == 1
    writer.close()


async def test_the_record_of_requests_is_bounded(server: SimServer) -> None:
    async with aiohttp.ClientSession(server.url) as client:
        for _ in range(70):
            async with client.post("/nothing") as response:
                assert response.status == 404
    assert len(server.seen) == 64


async def test_overload_is_a_clean_503() -> None:
    server = await SimServer(profile=SLOW, max_queued=1).start()
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request({"prompt": "x", "max_tokens": 9_999}))
    await until(lambda: server.engine.running == 1)
    async with (
        aiohttp.ClientSession(server.url) as client,
        client.post("/v1/completions", json={"prompt": "x"}) as response,
    ):
        error = (await response.json())["error"]
    assert (response.status, error["type"]) == (503, "Service Unavailable")
    assert server.busy_total == 1
    writer.close()
    await server.stop()


async def test_the_command_serves_and_ends_cleanly_on_sigterm() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "penstock.bench.sim", "--port", "0", "--count", "2"),
        *("--model", "m", "--profile", "instant", "--kv-tokens", "4096", "--seed", "7"),
        *("--speedup", "2"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    lines = [(await process.stdout.readline()).decode().split() for _ in range(2)]
    assert all((words[0], words[2]) == ("listening", "model=m") for words in lines)
    async with aiohttp.ClientSession() as client:
        for _, url, _ in lines:
            async with client.post(
                f"{url}/v1/completions", json={"prompt": "x", "max_tokens": 3, "stream": True}
            ) as response:
                assert (await response.text()).endswith("data: [DONE]\n\n")
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 10) == 0


@pytest.mark.parametrize("turns", range(5))
async def test_a_server_that_stops_leaves_no_connection_behind(turns: int) -> None:
    """Not even one that it has accepted and does not know yet, some turns of the loop earlier."""
    server = await SimServer().start()
    with socket.create_connection(("127.0.0.1", server.port), timeout=1) as client:
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.stop()
        with suppress(ConnectionResetError):
            assert client.recv(1) == b""
    assert not server.connections


async def test_a_server_without_descriptors_accepts_once_there_are_some() -> None:
    server = await SimServer().start()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as client:
        client.setblocking(False)
        resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, hard))
        try:
            client.connect_ex(("127.0.0.1", server.port))
            await asyncio.sleep(0.05)
            assert server.connections_total == 0
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await until(lambda: server.connections_total == 1)
        await server.stop()
