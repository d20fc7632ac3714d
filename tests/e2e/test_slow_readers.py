"""Clients that send and do not read: what they can make the proxy hold is bounded."""

import asyncio
import contextlib
import signal
import socket
from pathlib import Path

from tests.e2e.process import Penstock, Serve, Simulate

EMBEDDINGS = b'{"model":"sim-model","input":[%b]}' % b",".join([b'"x"'] * 2_000)  # some 400 KB back
_REQUEST_HEAD = (
    b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n"
)
REQUEST = _REQUEST_HEAD % len(EMBEDDINGS) + EMBEDDINGS


def connected(penstock: Penstock) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.connect(("127.0.0.1", penstock.port))
    sock.setblocking(False)
    return sock


def resident_mib(penstock: Penstock) -> float:
    status = Path(f"/proc/{penstock.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


async def send_until_refused(sock: socket.socket, data: bytes, within_s: float) -> int:
    """Bytes taken before the proxy closed or `within_s` was over."""
    sent = 0
    with contextlib.suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(within_s):
            while True:
                await asyncio.get_running_loop().sock_sendall(sock, data)
                sent += len(data)
    return sent


async def test_a_flood_of_early_requests_is_cut_off(serve: Serve, simulate: Simulate) -> None:
    penstock = await serve(await simulate(1))
    before_mib = resident_mib(penstock)
    with connected(penstock) as sock:
        flood = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" * 4_000
        sent = await send_until_refused(sock, flood, 2.0)
    assert sent < 8_000_000
    assert resident_mib(penstock) - before_mib < 20


async def test_answers_wait_for_a_reader(serve: Serve, simulate: Simulate) -> None:
    """The next early request begins when the answer before it was taken; else the stall ends it."""
    (server,) = await simulate(1)
    penstock = await serve([server], timeouts={"client_stall_s": 0.5})
    before_mib = resident_mib(penstock)
    with connected(penstock) as sock:
        await send_until_refused(sock, REQUEST * 4, 2.0)
        assert len(server.seen) < 8
        assert resident_mib(penstock) - before_mib < 20
    await penstock.until_at_rest()


async def test_the_next_client_gets_an_unpaused_connection(
    serve: Serve, simulate: Simulate
) -> None:
    """A large answer to a slow reader pauses its upstream; the pool must not keep it so."""
    penstock = await serve(await simulate(1), timeouts={"first_byte_s": 2})
    for _ in range(3):
        with connected(penstock) as sock:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(sock, REQUEST)
            got = await loop.sock_recv(sock, 100)
            assert got.startswith(b"HTTP/1.1 200")
            while not got.endswith(b"}"):
                await asyncio.sleep(0.001)
                got = await asyncio.wait_for(loop.sock_recv(sock, 65_536), 5)


async def test_a_drain_waits_for_a_slow_reader_of_a_whole_answer(
    serve: Serve, simulate: Simulate
) -> None:
    """Its answer is complete here; how long it may take to read it is not the drain's to say."""
    penstock = await serve(await simulate(1), drain={"grace_s": 0.1, "timeout_s": 20})
    body = b'{"model":"sim-model","input":[%b]}' % b",".join([b'"x"'] * 4_800)  # some 960 KB back
    with connected(penstock) as sock:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, _REQUEST_HEAD % len(body) + body)
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
