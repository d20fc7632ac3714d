"""Clients that leave or stop reading in every phase: the engine's work ends, memory is bounded."""

import asyncio
import re
import signal
import socket
import time
from itertools import product
from pathlib import Path
from time import monotonic
from typing import Any, cast

import anthropic
import openai
import pytest

from penstock.bench.sim.server import SimServer
from penstock.proxy.wire.sockets import unacknowledged_bytes
from tests.e2e.answers import ask
from tests.e2e.process import COUNTS, Fleet, Penstock, Serve, Simulate, until
from tests.e2e.tls import post
from tests.e2e.wire import RawClient

LONG: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 5_000}
# Probes far apart, so that connections and counters are those of the test alone.
QUIET = {"interval_s": 60, "timeout_s": 5}
LEAVING_WITHIN_S = 1.0


async def asks(
    penstock: Penstock,
    path: str = "/v1/completions",
    *,
    http: bytes = b"1.1",
    receive_bytes: int = 0,
    **fields: Any,
) -> RawClient:
    return await RawClient.open(penstock.port, post(path, LONG | fields, http=http), receive_bytes)


WAYS = (RawClient.close, RawClient.reset, RawClient.half_close)


async def assert_work_ends(penstock: Penstock, server: SimServer, phase: str) -> None:
    took_s = await until(lambda: server.engine.idle, LEAVING_WITHIN_S)
    print(f"aborted in {phase} within {took_s * 1000:.1f} ms")
    await penstock.until(lambda listing: not any(listing[0][name] for name in COUNTS), 1.0)


async def test_leaving_before_the_first_token(fleet: Fleet) -> None:
    (server,), penstock = await fleet(health=QUIET)
    ways = [(way, fault) for way in WAYS for fault in ("hang_before_headers", "hang_after_headers")]
    for i, (leave, fault) in enumerate(ways):
        server.faults.clear()
        server.faults.set(fault)
        for stream in (True, False):
            client = await asks(penstock, stream=stream)
            await until(lambda: server.engine.running == 1)
            leave(client)
            await assert_work_ends(penstock, server, f"prefill stream={stream} {leave.__name__}")
        assert server.client_aborts_total == 2 * (i + 1)
    assert 'penstock_client_aborts_total{phase="prefill"} 12.0' in await penstock.metrics()
    assert (await penstock.backends())[0]["failures_total"] == 0


async def test_leaving_a_stream_midway(fleet: Fleet) -> None:
    (server,), penstock = await fleet(profile="steady-50", health=QUIET)
    for path, fields in (
        ("/v1/completions", {}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/responses", {"input": "x", "max_output_tokens": 5_000}),
    ):
        for leave in WAYS:
            client = await asks(penstock, path, stream=True, **fields)
            await client.until(b"text" if path != "/v1/chat/completions" else b"content")
            assert server.engine.running == 1
            leave(client)
            await assert_work_ends(penstock, server, f"decode {path} {leave.__name__}")
    assert 'penstock_client_aborts_total{phase="decode"} 12.0' in await penstock.metrics()


@pytest.fixture
async def slow(simulate: Simulate, serve: Serve) -> tuple[SimServer, Penstock]:
    (server,) = await simulate()
    return server, await serve([server], health=QUIET, timeouts={"client_stall_s": 0.6})


MUCH: dict[str, Any] = {"stream": True, "n": 16, "max_tokens": 20_000}  # some 60 MB


@pytest.mark.alone
async def test_a_client_that_stops_reading(slow: tuple[SimServer, Penstock]) -> None:
    server, penstock = slow
    before = penstock.resident_bytes
    began_s = time.monotonic()
    client = await asks(penstock, receive_bytes=8_192, **MUCH)
    relayed = -1

    def still(listing: list[dict[str, Any]]) -> bool:
        """Whether nothing was relayed since the last look: the upstream is paused."""
        nonlocal relayed
        relayed, last = listing[0]["active_decode_tokens"], relayed
        return bool(relayed == last > 100)

    await penstock.until(still, 2.0)
    generated = server.engine.generation_tokens_total
    await asyncio.sleep(0.05)
    (backend,) = await penstock.backends()
    assert backend["active_decode_tokens"] == relayed
    assert server.engine.generation_tokens_total > generated
    assert penstock.resident_bytes - before < 8_388_608
    await until(lambda: server.engine.idle, 3.0)
    assert 0.5 < time.monotonic() - began_s < 3.0
    await penstock.until_at_rest()
    assert not (await client.rest()).endswith(b"0\r\n\r\n")  # no end either


_REQUEST_HEAD = (
    b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n"
)
# Some 960 KB back.
LARGE_INPUT = b'{"model":"sim-model","input":[%b]}' % b",".join([b'"x"'] * 4_800)
LARGE_REQUEST = _REQUEST_HEAD % len(LARGE_INPUT) + LARGE_INPUT


def connect_slowly(penstock: Penstock) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)  # else the kernel takes 4 MB here
    sock.connect(("127.0.0.1", penstock.port))
    sock.setblocking(False)
    return sock


def unsent_bytes(penstock: Penstock) -> int:
    """What the kernel holds for the clients of this proxy: for sockets that are closed too."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ours = [each for each in lines if each[1].endswith(f":{penstock.port:04X}")]
    return sum(int(each[4].partition(":")[0], 16) for each in ours)


async def test_the_kernel_keeps_nothing_for_a_dropped_reader(fleet: Fleet) -> None:
    """After a plain close it would offer the unsent rest to the client for minutes."""
    _, penstock = await fleet(1, timeouts={"client_stall_s": 2})
    with connect_slowly(penstock) as sock:
        await asyncio.get_running_loop().sock_sendall(sock, LARGE_REQUEST)
        async with asyncio.timeout(40):
            while unsent_bytes(penstock) < 100_000:
                await asyncio.sleep(0.01)
            while unsent_bytes(penstock):
                await asyncio.sleep(0.01)


async def test_a_drain_waits_for_a_slow_reader(fleet: Fleet) -> None:
    """Its answer is complete here; how long it may take to read it is not the drain's to say."""
    _, penstock = await fleet(1, drain={"grace_s": 0.1, "timeout_s": 20})
    with connect_slowly(penstock) as sock:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, LARGE_REQUEST)
        await asyncio.sleep(1.5)
        penstock.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(1.0)
        got = b""
        async with asyncio.timeout(15):
            while piece := await loop.sock_recv(sock, 65_536):
                got += piece
    head, _, answer = got.partition(b"\r\n\r\n")
    assert b"content-length: %d" % len(answer) in head
    assert len(answer) > 900_000
    assert await asyncio.wait_for(penstock.process.wait(), 5) == 0


async def test_bytes_a_client_has_not_taken_are_counted() -> None:
    """A client's pace is measured by it."""
    accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    server = await asyncio.start_server(lambda _, writer: accepted.put_nowait(writer), "127.0.0.1")
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.connect(server.sockets[0].getsockname())
        client.setblocking(False)
        writer = await accepted.get()
        transport = cast(asyncio.Transport, writer.transport)
        transport.write(b"x" * 200_000)
        waiting = unacknowledged_bytes(transport)
        assert waiting > 50_000
        got = 0
        while got < 200_000:
            got += len(await loop.sock_recv(client, 65_536))
        await until(lambda: not unacknowledged_bytes(transport))
        writer.close()
        await writer.wait_closed()
        assert unacknowledged_bytes(transport) == 0  # nobody knows any more
    server.close()


USER = [{"role": "user", "content": "Tell me of rivers."}]


async def test_an_sdks_own_timeout_is_a_timeout(fleet: Fleet) -> None:
    """It raises its APITimeoutError, whatever its timer; nobody else is to blame."""
    servers, penstock = await fleet(2)
    for server in servers:
        server.faults.set("hang_after_headers")
    options: Any = {"api_key": "k", "max_retries": 0}
    late_s, raised = 0.0, set[type]()
    for timeout_s, stream in product((0.3, 0.45), (False, True)):
        asked: Any = {"model": "sim-model", "messages": USER, "max_tokens": 40, "stream": stream}
        began_s = monotonic()
        async with (
            openai.AsyncOpenAI(base_url=penstock.url + "/v1", timeout=timeout_s, **options) as gpt,
            anthropic.AsyncAnthropic(base_url=penstock.url, timeout=timeout_s, **options) as claude,
        ):
            calls: list[Any] = [gpt.chat.completions.create(**asked) for _ in range(10)]
            calls.append(claude.messages.create(**asked))
            ended = await asyncio.gather(*calls, return_exceptions=True)
            raised |= {type(error) for error in ended}
        late_s = max(late_s, monotonic() - began_s - timeout_s)
    await penstock.until_at_rest()
    assert [each["failures_total"] for each in await penstock.backends()] == [0, 0]
    codes = set(re.findall(r'code="(\d+)"', await penstock.metrics()))
    # A client that leaves 0.2 s late is told 408. Nobody is told 504, a backend's fault.
    assert codes == {"499"} or (late_s > 0.2 and codes == {"408", "499"})
    timeouts = {openai.APITimeoutError, anthropic.APITimeoutError}
    assert raised == timeouts or (late_s > 0.2 and raised & timeouts)
    assert {line["status"] for line in penstock.access_lines} == {int(code) for code in codes}


async def test_plain_asyncio_serves_and_notices_leaving(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "uvloop.py").write_text("raise ImportError")
    _, penstock = await fleet(2, modules=tmp_path)
    assert any(b"uvloop is missing" in line for line in penstock.log)
    answers = await asyncio.gather(*(ask(penstock, stream=True) for _ in range(30)))
    assert all(got.body.endswith(b"data: [DONE]\n\n") for got in answers)
    assert len({got.body.count(b"\n\n") for got in answers}) == 1
    client = await asks(penstock, stream=True, max_tokens=100_000)
    await client.until(b"text")
    client.close()
    await penstock.until_at_rest()
