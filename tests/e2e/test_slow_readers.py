"""Clients that send and do not read: what they can make the proxy hold is bounded."""

import asyncio
import contextlib
import signal
import socket
from pathlib import Path
from typing import cast

import aiohttp

from penstock.proxy.wire.sockets import unacknowledged_bytes
from tests.e2e.process import Penstock, Serve, Simulate
from tests.e2e.raw_backend import RawBackend, answer

EMBEDDINGS = b'{"model":"sim-model","input":[%b]}' % b",".join([b'"x"'] * 2_000)  # some 400 KB back
_REQUEST_HEAD = (
    b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n"
)
REQUEST = _REQUEST_HEAD % len(EMBEDDINGS) + EMBEDDINGS
LARGE = b'{"model":"sim-model","input":[%b]}' % b",".join([b'"x"'] * 4_800)  # some 960 KB back
LARGE_REQUEST = _REQUEST_HEAD % len(LARGE) + LARGE


def connected(penstock: Penstock, address: str = "127.0.0.1") -> socket.socket:
    sock = socket.socket()
    sock.bind((address, 0))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)  # else the kernel takes 4 MB here
    sock.connect(("127.0.0.1", penstock.port))
    sock.setblocking(False)
    return sock


def resident_mib(penstock: Penstock) -> float:
    status = Path(f"/proc/{penstock.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def unsent_bytes(penstock: Penstock) -> int:
    """What the kernel holds for the clients of this proxy: for sockets that are closed too."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ours = [each for each in lines if each[1].endswith(f":{penstock.port:04X}")]
    return sum(int(each[4].partition(":")[0], 16) for each in ours)


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
    assert sent < 8_000_000  # the kernel's buffer of the proxy is up to 6 MB of it
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


async def test_the_kernel_keeps_nothing_for_a_reader_that_was_dropped(
    serve: Serve, simulate: Simulate
) -> None:
    """After a plain close it would offer the unsent rest to the client for minutes."""
    penstock = await serve(await simulate(1), timeouts={"client_stall_s": 2})
    with connected(penstock) as sock:
        await asyncio.get_running_loop().sock_sendall(sock, LARGE_REQUEST)
        async with asyncio.timeout(40):
            while unsent_bytes(penstock) < 100_000:
                await asyncio.sleep(0.01)
            while unsent_bytes(penstock):
                await asyncio.sleep(0.01)


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
    with connected(penstock) as sock:
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


async def test_unread_answers_of_one_client_have_nobody_else_refused(serve: Serve) -> None:
    """They would fill the memory: each takes 1 MB until the stall ends it."""
    backend = RawBackend()
    await backend.start()
    large = answer(b'{"data":[{"embedding":[%b]}]}' % b",".join([b"0.125"] * 170_000))
    small = answer(b'{"choices":[{"text":"x","finish_reason":"stop"}]}')
    backend.always = lambda raw: (large if b"/v1/embeddings" in raw[:40] else small,)
    penstock = await serve(
        [backend.url], limits={"memory_bytes": 256 * 2**20}, timeouts={"client_stall_s": 60}
    )
    ask = _REQUEST_HEAD % 13 + b'{"input":"x"}'
    asks = [ask, ask.replace(b"host: x", b"host: x\r\nconnection: close")]
    connector = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(backend.stop)
        other = await stack.enter_async_context(
            aiohttp.ClientSession(penstock.url, connector=connector)
        )
        statuses = []
        for _ in range(40):
            for number in range(8):
                reader = stack.enter_context(connected(penstock))
                await asyncio.get_running_loop().sock_sendall(reader, asks[number % 2])
            async with other.post("/v1/completions", json={"prompt": "x"}) as reply:
                statuses.append(reply.status)
            await asyncio.sleep(0.05)
        for _ in range(40):
            async with other.post("/v1/completions", json={"prompt": "x"}) as reply:
                statuses.append(reply.status)
            await asyncio.sleep(0.05)
        assert statuses == [200] * 80
        assert 'penstock_shed_total{priority="0",reason="unread"}' in await penstock.metrics()


async def test_whoever_reads_keeps_its_answer_while_others_do_not_read(serve: Serve) -> None:
    """The readers share an address, which has more of them than any other address."""
    backend = RawBackend()
    await backend.start()
    backend.always = lambda raw: (answer(b"x" * 1_000_000),)
    penstock = await serve(
        [backend.url], limits={"memory_bytes": 160 * 2**20}, timeouts={"client_stall_s": 60}
    )
    ask = _REQUEST_HEAD % 13 + b'{"input":"x"}'
    loop = asyncio.get_running_loop()

    async def read(sock: socket.socket) -> int:
        """At 1 MB/s."""
        await loop.sock_sendall(sock, ask)
        got = 0
        with contextlib.suppress(ConnectionError):
            while got < 1_000_000 and (data := await loop.sock_recv(sock, 65_536)):
                got += len(data)
                await asyncio.sleep(len(data) / 1e6)
        return got

    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(backend.stop)
        whole = 0
        for _ in range(3):
            for number in range(40):
                stalled = stack.enter_context(connected(penstock, f"127.0.1.{number + 1}"))
                await loop.sock_sendall(stalled, ask)
            socks = [stack.enter_context(connected(penstock)) for _ in range(15)]
            whole += sum(got >= 1_000_000 for got in await asyncio.gather(*map(read, socks)))
        assert whole == 45
        assert 'penstock_shed_total{priority="0",reason="unread"}' in await penstock.metrics()


async def test_the_kernel_tells_what_a_client_has_not_taken() -> None:
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
        async with asyncio.timeout(5):
            while unacknowledged_bytes(transport):
                await asyncio.sleep(0.01)
        writer.close()
        await writer.wait_closed()
        assert unacknowledged_bytes(transport) == 0  # nobody knows any more
    server.close()
