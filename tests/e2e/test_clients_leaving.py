"""Clients that leave, and clients that stop reading, in every phase of a request.

The engine's work ends with its client, and a client that does not read costs bounded memory.
"""

import asyncio
import os
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, ClassVar

import orjson
import pytest

from penstock.bench.sim.server import SimServer
from tests.e2e.process import COUNTS, Penstock, Serve, Simulate

PROMPT: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 5_000}
# Probes far apart, so that connections and counters are those of the test alone.
QUIET = {"interval_s": 60, "timeout_s": 5}
LEAVING_WITHIN_S = 1.0


class Client:
    """A raw connection to the data port."""

    opened: ClassVar[list["Client"]] = []

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.opened.append(self)
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def ask(
        cls,
        penstock: Penstock,
        path: str = "/v1/completions",
        *,
        http: bytes = b"1.1",
        receive_bytes: int = 0,
        cut_bytes: int = 0,
        **fields: Any,
    ) -> "Client":
        sock = socket.socket()
        sock.setblocking(False)
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client = cls(sock)
        await client._loop.sock_connect(sock, ("127.0.0.1", penstock.port))
        body = orjson.dumps(PROMPT | fields)
        head = b"POST %b HTTP/%b\r\nHost: x\r\nContent-Type: application/json\r\n"
        head = head % (path.encode(), http) + b"Content-Length: %d\r\n\r\n" % len(body)
        await client._loop.sock_sendall(sock, head + body[: len(body) - cut_bytes])
        return client

    async def until(self, marker: bytes) -> None:
        got = b""
        async with asyncio.timeout(5):
            while marker not in got:
                more = await self._loop.sock_recv(self.sock, 65_536)
                assert more, got
                got += more

    async def rest(self, *, pause_s: float = 0.0) -> bytes:
        """All until the end. Raises ConnectionResetError when the end is a reset."""
        got = b""
        async with asyncio.timeout(20):
            while more := await self._loop.sock_recv(self.sock, 65_536):
                got += more
                await asyncio.sleep(pause_s)
                if got.endswith(b"\r\n0\r\n\r\n"):
                    break
        return got

    def close(self) -> None:
        self.sock.close()

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def half_close(self) -> None:
        """Say that no more will be sent; a client that exits looks the same."""
        self.sock.shutdown(socket.SHUT_WR)


WAYS = (Client.close, Client.reset, Client.half_close)


@pytest.fixture(autouse=True)
async def close_clients() -> AsyncIterator[None]:
    yield
    for client in Client.opened:
        client.close()
    Client.opened.clear()


async def until(holds: Callable[[], bool], within_s: float = 5.0) -> float:
    """Wait for a condition; how long it took."""
    began_s = time.perf_counter()
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.001)
    return time.perf_counter() - began_s


async def assert_work_ends(penstock: Penstock, server: SimServer, phase: str) -> None:
    took_s = await until(lambda: server.engine.idle, LEAVING_WITHIN_S)
    print(f"aborted in {phase} within {took_s * 1000:.1f} ms")
    await penstock.until(lambda listing: not any(listing[0][name] for name in COUNTS), 1.0)


# Leaving ---------------------------------------------------------------------------------------


async def test_leaving_before_the_first_token(simulate: Simulate, serve: Serve) -> None:
    (server,) = await simulate()
    penstock = await serve([server], health=QUIET)
    ways = [(way, fault) for way in WAYS for fault in ("hang_before_headers", "hang_after_headers")]
    for i, (leave, fault) in enumerate(ways):
        server.faults.clear()
        server.faults.set(fault)
        for stream in (True, False):
            client = await Client.ask(penstock, stream=stream)
            await until(lambda: server.engine.running == 1)
            leave(client)
            await assert_work_ends(penstock, server, f"prefill stream={stream} {leave.__name__}")
        assert server.client_aborts_total == 2 * (i + 1)
    assert 'penstock_client_aborts_total{phase="prefill"} 12.0' in await penstock.metrics()
    assert (await penstock.backends())[0]["failures_total"] == 0


async def test_leaving_in_the_middle(simulate: Simulate, serve: Serve) -> None:
    (server,) = await simulate(profile="steady-50")
    penstock = await serve([server], health=QUIET)
    for path, fields in (
        ("/v1/completions", {}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/responses", {"input": "x", "max_output_tokens": 5_000}),
    ):
        for leave in WAYS:
            client = await Client.ask(penstock, path, stream=True, **fields)
            await client.until(b"text" if path != "/v1/chat/completions" else b"content")
            assert server.engine.running == 1
            leave(client)
            await assert_work_ends(penstock, server, f"decode {path} {leave.__name__}")
    assert 'penstock_client_aborts_total{phase="decode"} 12.0' in await penstock.metrics()


async def test_leaving_a_plain_answer(simulate: Simulate, serve: Serve) -> None:
    (server,) = await simulate(profile="steady-50")
    penstock = await serve([server], health=QUIET)
    for leave in WAYS:
        client = await Client.ask(penstock)
        await until(lambda: server.engine.running == 1)
        leave(client)
        await assert_work_ends(penstock, server, f"plain {leave.__name__}")
    assert server.engine.aborted_total == 3


async def test_leaving_a_held_stream(simulate: Simulate, serve: Serve) -> None:
    (server,) = await simulate()
    penstock = await serve([server], health=QUIET, timeouts={"hold_s": 0.05})
    server.faults.set("hang_after_headers")
    for leave in WAYS:
        client = await Client.ask(penstock, stream=True)
        await client.until(b": ping\n\n")
        leave(client)
        await assert_work_ends(penstock, server, f"hold {leave.__name__}")


async def test_leaving_over_http_1_0(simulate: Simulate, serve: Serve) -> None:
    (server,) = await simulate(profile="steady-50")
    penstock = await serve([server], health=QUIET)
    for leave in WAYS:
        for stream in (True, False):
            client = await Client.ask(penstock, http=b"1.0", stream=stream)
            if stream:
                await client.until(b"text")
            await until(lambda: server.engine.running == 1)
            leave(client)
            await assert_work_ends(penstock, server, f"1.0 stream={stream} {leave.__name__}")
    assert server.engine.aborted_total == 6


async def test_leaving_with_more_requests_sent_ahead(simulate: Simulate, serve: Serve) -> None:
    """The one that runs ends, and those behind it never begin, whole or not."""
    (server,) = await simulate(profile="steady-50")
    penstock = await serve([server], health=QUIET)
    for count, leave in enumerate(WAYS, 1):
        client = await Client.ask(penstock, stream=count == 1)
        await until(lambda: server.engine.running == 1)
        early = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
        early += b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 40\r\n\r\n{"
        await client._loop.sock_sendall(client.sock, early)
        leave(client)
        await assert_work_ends(penstock, server, f"pipelined {leave.__name__}")
        assert sum(each.method == "POST" for each in server.seen) == count
    assert server.engine.aborted_total == len(WAYS)


async def test_leaving_after_the_answer_costs_nothing(simulate: Simulate, serve: Serve) -> None:
    """A client that is served and goes, in any way, is no abort and breaks nothing for others."""
    (server,) = await simulate()
    penstock = await serve([server], health=QUIET)
    for leave in WAYS:
        client = await Client.ask(penstock, stream=True, max_tokens=2)
        await client.until(b"0\r\n\r\n")
        leave(client)
    client = await Client.ask(penstock, max_tokens=1)
    await client.until(b"200 OK")
    assert server.client_aborts_total == 0
    assert "penstock_client_aborts_total{" not in await penstock.metrics()


@pytest.fixture
def full_port() -> Callable[[int], list[socket.socket]]:
    """Occupy a port with a listener that answers no more connections."""

    def occupy(port: int) -> list[socket.socket]:
        listener = socket.create_server(("127.0.0.1", port), backlog=0)
        sockets = [listener]
        for _ in range(4):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
            sockets.append(sock)
        return sockets

    return occupy


@pytest.fixture
async def dialling(
    simulate: Simulate, serve: Serve, full_port: Callable[[int], list[socket.socket]]
) -> AsyncIterator[Penstock]:
    """A proxy whose one backend takes no connection any more, and refuses none."""
    (server,) = await simulate()
    penstock = await serve([server], health=QUIET, timeouts={"connect_s": 30})
    port = server.port
    await server.stop()
    sockets = full_port(port)
    yield penstock
    for sock in sockets:
        sock.close()


async def test_leaving_while_a_backend_is_dialled(dialling: Penstock) -> None:
    penstock = dialling
    for leave in WAYS:
        client = await Client.ask(penstock)
        await penstock.until(lambda listing: bool(listing[0]["requests_in_flight"]), 2)
        began_s = time.perf_counter()
        leave(client)
        await penstock.until(lambda listing: not any(listing[0][name] for name in COUNTS), 1.0)
        print(f"gave up dialling within {(time.perf_counter() - began_s) * 1000:.1f} ms")
    assert 'penstock_client_aborts_total{phase="connect"} 3.0' in await penstock.metrics()


def descriptors(penstock: Penstock) -> int:
    return len(os.listdir(f"/proc/{penstock.process.pid}/fd"))


async def test_clients_that_leave_while_a_backend_is_dialled_hold_no_descriptors(
    dialling: Penstock,
) -> None:
    before = descriptors(dialling)
    for _ in range(10):
        for _ in range(10):
            client = await Client.ask(dialling)
            await asyncio.sleep(0.001)
            client.reset()
        # Long before the dials would end.
        await until(lambda: descriptors(dialling) - before <= 2)


async def test_leaving_halfway_through_the_body(simulate: Simulate, serve: Serve) -> None:
    (server,) = await simulate()
    limits = {"body_bytes": 2_000, "bodies_bytes": 4_000}
    penstock = await serve([server], health=QUIET, limits=limits)
    for leave in WAYS * 3:  # were the bytes not given back, the third would be refused
        client = await Client.ask(penstock, prompt="x" * 1_800, cut_bytes=1)
        await asyncio.sleep(0.01)
        leave(client)
    asked = [each for each in server.seen if (b"user-agent", b"penstock") not in each.headers]
    assert not asked  # a busy machine may have had a probe
    client = await Client.ask(penstock, max_tokens=1)
    await client.until(b"200 OK")


async def test_many_clients_leave_at_once(simulate: Simulate, serve: Serve) -> None:
    servers = await simulate(2, profile="steady-50")
    penstock = await serve(servers, health=QUIET)
    clients = [await Client.ask(penstock, stream=bool(i % 3)) for i in range(60)]
    await until(lambda: sum(server.engine.running for server in servers) == 60)
    for i, client in enumerate(clients):
        (Client.close, Client.reset)[i % 2](client)
    took_s = await until(lambda: all(server.engine.idle for server in servers), LEAVING_WITHIN_S)
    print(f"aborted 60 within {took_s * 1000:.1f} ms")
    assert sum(server.engine.aborted_total for server in servers) == 60


# Not reading -----------------------------------------------------------------------------------


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
    client = await Client.ask(penstock, receive_bytes=8_192, **MUCH)
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
    with suppress(ConnectionResetError):  # no end either
        assert not (await client.rest()).endswith(b"0\r\n\r\n")


async def test_a_stalled_client_of_http_1_0_sees_a_reset(
    slow: tuple[SimServer, Penstock],
) -> None:
    """Over 1.0 a plain close says that the answer is whole."""
    server, penstock = slow
    client = await Client.ask(penstock, http=b"1.0", receive_bytes=8_192, **MUCH)
    await until(lambda: server.engine.running > 0)
    await until(lambda: server.engine.idle, 3.0)
    with pytest.raises(ConnectionResetError):
        await client.rest()


async def test_a_slow_client_that_reads_on_is_not_dropped(
    slow: tuple[SimServer, Penstock],
) -> None:
    _, penstock = slow
    fields = MUCH | {"max_tokens": 300}  # some 1 MB
    client = await Client.ask(penstock, receive_bytes=8_192, **fields)
    got = await client.rest(pause_s=0.01)
    assert got.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
