"""The simulated server: its HTTP, its endpoints, its lengths of answers."""

import asyncio
import json
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from hashlib import sha256
from typing import Any

import aiohttp
import pytest

from penstock.bench.sim.cli import main
from penstock.bench.sim.job import Manner, Span
from penstock.bench.sim.server import SimServer
from tests.e2e.process import Simulate, until
from tests.e2e.tls import post

pytestmark = pytest.mark.once

CHAT_PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
Post = dict[str, Any]


@pytest.fixture
async def client(simulate: Simulate) -> AsyncIterator[aiohttp.ClientSession]:
    (server,) = await simulate()
    async with aiohttp.ClientSession(server.url) as client:
        yield client


async def whole(client: aiohttp.ClientSession, path: str, body: Post, status: int = 200) -> Any:
    async with client.post(path, json=body) as response:
        assert response.status == status
        assert response.headers["content-type"] == "application/json"
        return json.loads(await response.read())


async def test_the_200_comes_before_the_first_token(simulate: Simulate) -> None:
    (server,) = await simulate(profile="default")
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    # 100,000 tokens take 10 s to prefill.
    writer.write(post("/v1/completions", {"prompt": [7] * 100_000, "stream": True}))
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 1)
    assert head.startswith(b"HTTP/1.1 200 OK\r\ndate: ")
    assert b"\r\nserver: uvicorn\r\n" in head
    assert b"\r\ntransfer-encoding: chunked\r\n" in head
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.05)
    writer.close()
    await until(lambda: server.engine.idle)


async def test_requests_are_recorded_as_received(simulate: Simulate) -> None:
    (server,) = await simulate()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    raw = post("/v1/completions", {"prompt": "x", "max_tokens": 1}, b"X-Odd-CASE: a  b", b"X-O: c")
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


async def test_the_command_serves_and_ends_on_sigterm() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "penstock.proxy", "sim", "--port", "0", "--count", "2"),
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
async def test_stopping_leaves_no_connection(turns: int) -> None:
    """Not even one that it has accepted and does not know yet, some turns of the loop earlier."""
    server = await SimServer().start()
    with socket.create_connection(("127.0.0.1", server.port), timeout=1) as client:
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.stop()
        with suppress(ConnectionResetError):
            assert client.recv(1) == b""
    assert not server.connections


async def test_accepting_resumes_once_there_are_descriptors() -> None:
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


async def test_fixed_answers(client: aiohttp.ClientSession) -> None:
    async with client.get("/health") as response:
        assert (response.status, await response.read()) == (200, b"")
    async with client.get("/v1/models") as response:
        (model,) = (await response.json())["data"]
    assert (model["id"], model["max_model_len"]) == ("sim-model", 131_072)
    async with client.get("/version") as response:
        assert await response.json() == {"version": "0.32.0"}
    async with client.get("/load") as response:
        assert await response.json() == {"server_load": 0}
    async with client.get("/nothing") as response:
        assert (response.status, await response.json()) == (404, {"detail": "Not Found"})
    async with client.get(CHAT_PATH) as response:
        assert response.status == 405


async def test_the_api_key_guards_only_v1(simulate: Simulate) -> None:
    (server,) = await simulate(api_key="k")
    async with aiohttp.ClientSession(server.url) as client:
        answer = await whole(client, CHAT_PATH, {"messages": HELLO}, status=401)
        assert answer == {"error": "Unauthorized"}
        assert (await whole(client, "/tokenize", {"prompt": "abc"}))["count"] == 1
        bearer = {"authorization": "Bearer k"}
        async with client.post(CHAT_PATH, json={"messages": HELLO}, headers=bearer) as response:
            assert response.status == 200


def question(number: int, **fields: Any) -> dict[str, Any]:
    options = {"include_usage": True}
    messages = [{"role": "user", "content": f"{number} rivers"}]
    return {"messages": messages, "stream": True, "stream_options": options, **fields}


async def chunks(server: SimServer, asked: dict[str, Any]) -> list[Any]:
    async with (
        aiohttp.ClientSession(server.url) as client,
        client.post(CHAT_PATH, json=asked) as response,
    ):
        *events, done = (await response.text()).split("\n\n")[:-1]
    assert done == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


async def test_the_server_chooses_lengths_of_answers(simulate: Simulate) -> None:
    (server,) = await simulate()
    server.manner = Manner(answer_tokens=Span(60, 200))
    lengths = []
    for number in range(20):
        *_, last, usage = await chunks(server, question(number))
        assert last["choices"][0]["finish_reason"] == "stop"
        lengths.append(usage["usage"]["completion_tokens"])
    assert min(lengths) >= 60
    assert max(lengths) <= 200
    assert len(set(lengths)) > 10
    again = await chunks(server, question(3))
    assert again[-1]["usage"]["completion_tokens"] == lengths[3]
    *_, last, usage = await chunks(server, question(3, max_tokens=7))
    assert last["choices"][0]["finish_reason"] == "length"
    assert usage["usage"]["completion_tokens"] == 7


@pytest.mark.parametrize("early", [False, True])
async def test_hidden_tokens_are_not_shown(simulate: Simulate, early: bool) -> None:
    (server,) = await simulate()
    server.manner = Manner(hidden_tokens=Span(50, 50), early_role=early)
    role, *deltas, usage = await chunks(server, question(0, max_tokens=5))
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(deltas) == 5
    assert usage["usage"]["completion_tokens"] == 55
    assert server.engine.generation_tokens_total == 55


async def test_an_early_role_comes_before_the_prefill(simulate: Simulate) -> None:
    (server,) = await simulate(profile="default")
    asked = question(
        0, messages=[{"role": "user", "content": "long " * 8_000}]
    )  # a second of prefill
    for early in (True, False):
        server.manner = Manner(early_role=early)
        async with (
            aiohttp.ClientSession(server.url) as client,
            client.post(CHAT_PATH, json=asked) as response,
        ):
            await response.content.readline()
            assert bool(server.engine.generation_tokens_total) != early
            server.engine.generation_tokens_total = 0


@pytest.mark.parametrize("text", ["200:60", "0:5", "x", "5:", ":5", "1:2:3"])
def test_senseless_spans_are_refused(text: str) -> None:
    with pytest.raises(SystemExit):
        main(["--port", "0", "--answer-tokens", text])
