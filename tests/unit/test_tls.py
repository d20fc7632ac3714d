"""The TLS layer by transcript: two of them back to back, no socket."""

import asyncio
import ssl
from collections.abc import Callable
from random import Random
from time import monotonic
from typing import Any

import pytest

from conf.settings import Settings
from proxy.configuration import configure, draft
from proxy.host import Names
from proxy.metrics import Metrics
from proxy.plane import DataPlane
from proxy.rota import Rota
from proxy.tls import READ_BYTES, Certificates, TlsConnection
from tests.certificates import authority, client_context, server_context

HANDSHAKE_S = 5.0


class Wire(asyncio.Transport):
    """One end of a wire that a test delivers by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.ended = self.aborted = self.closed = self.paused = False
        self.limits: tuple[int | None, int | None] = (None, None)

    def write(self, data: Any) -> None:
        assert not self.is_closing()
        assert not self.ended
        self.sent += bytes(data)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return len(self.sent)

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limits = (high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("192.0.2.1", 7)}.get(name, default)


class App(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: Any = None
        self.got = b""
        self.pieces = 0
        self.ended = 0
        self.lost: list[Exception | None] = []
        self.paused = 0
        self.greeting = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        if self.greeting:
            self.transport.write(self.greeting)

    def data_received(self, data: bytes) -> None:
        self.got += data
        self.pieces += 1

    def eof_received(self) -> None:
        self.ended += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)

    def pause_writing(self) -> None:
        self.paused += 1


class End:
    """One end: the layer under test, the wire below it, the protocol behind it."""

    def __init__(
        self, context: ssl.SSLContext, server_name: str | None = None, rota: Rota | None = None
    ) -> None:
        self.wire, self.app = Wire(), App()
        self.failures = 0
        self.tls = TlsConnection(
            asyncio.get_running_loop(),
            context,
            self.app,
            handshake_s=HANDSHAKE_S,
            server_name=server_name,
            on_failure=self.failed,
            rota=rota,
        )

    def failed(self) -> None:
        self.failures += 1


def deliver(source: End, to: End, piece_bytes: int = 0) -> bytes:
    """What one end sent, to the other end, whole or in pieces."""
    sent, source.wire.sent = source.wire.sent, b""
    step = piece_bytes or max(1, len(sent))
    for at in range(0, len(sent), step):
        if not to.wire.is_closing():
            to.tls.data_received(sent[at : at + step])
    return sent


def shaken(
    *, client: ssl.SSLContext | None = None, server: ssl.SSLContext | None = None,
    name: str = "localhost", piece_bytes: int = 0, greeting: bytes = b"",
) -> tuple[End, End]:  # fmt: skip
    """A client and a server after their handshake."""
    left, right = End(client or client_context(), name), End(server or server_context())
    right.app.greeting = greeting
    right.tls.connection_made(right.wire)
    left.tls.connection_made(left.wire)
    while left.wire.sent or right.wire.sent:
        deliver(left, right, piece_bytes)
        deliver(right, left, piece_bytes)
    return left, right


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("piece_bytes", [1, 2, 5, 7, 1_400, 0])
async def test_bytes_arrive_however_the_records_are_cut(
    version: ssl.TLSVersion, piece_bytes: int
) -> None:
    context = client_context()
    context.minimum_version = context.maximum_version = version
    client, server = shaken(client=context, piece_bytes=piece_bytes)
    assert client.tls.opened.done()
    assert server.tls.opened.done()
    up, down = bytes(range(256)) * 300, b"data: x\n\n" * 5_000
    client.tls.write(up)
    server.tls.write(down)
    assert up not in deliver(client, server, piece_bytes)
    assert down[:100] not in deliver(server, client, piece_bytes)
    assert (server.app.got, client.app.got) == (up, down)
    if not piece_bytes:
        assert (server.app.pieces, client.app.pieces) == (1, 1)


async def test_what_is_written_is_on_the_wire_at_once() -> None:
    """So its buffer is the only one: limits, pauses and sizes are the wire's own."""
    _, server = shaken()
    transport = server.app.transport
    transport.set_write_buffer_limits(high=9, low=3)
    assert server.wire.limits == (9, 3)
    transport.write(b"x" * 1_000_000)
    assert transport.get_write_buffer_size() == len(server.wire.sent) > 1_000_000
    server.tls.pause_writing()
    assert server.app.paused == 1
    assert transport.get_extra_info("peername") == ("192.0.2.1", 7)
    assert transport.get_extra_info("ssl_object").version() == "TLSv1.3"


async def test_what_is_written_early_waits_for_the_handshake() -> None:
    client, server = shaken(greeting=b"HTTP/1.1 429 ")
    assert client.app.got == b"HTTP/1.1 429 "
    assert not server.app.lost


async def test_close_notify_is_an_end() -> None:
    client, server = shaken()
    client.tls.write(b"last")
    client.app.transport.close()
    assert client.wire.closed
    assert not client.wire.aborted
    deliver(client, server)
    assert (server.app.got, server.app.ended) == (b"last", 1)
    assert server.wire.closed
    server.tls.connection_lost(None)
    assert server.app.lost == [None]


async def test_a_bare_fin_is_a_cut() -> None:
    client, server = shaken()
    client.tls.write(b"part")
    deliver(client, server)
    server.tls.eof_received()
    assert (server.app.ended, server.wire.aborted) == (0, True)
    server.tls.connection_lost(None)
    assert isinstance(server.app.lost[0], ConnectionResetError)


async def test_one_direction_ends_alone() -> None:
    """As after an error: the rest of a request is counted and dropped, deciphered or not."""
    client, server = shaken()
    server.app.transport.write(b"refused")
    assert server.app.transport.can_write_eof()
    server.app.transport.write_eof()
    assert server.wire.ended
    assert not server.wire.closed
    deliver(server, client)
    assert (client.app.got, client.app.ended) == (b"refused", 1)
    server.tls.data_received(b"\x17\x03\x03 anything")
    assert server.app.got == b"\x17\x03\x03 anything"
    assert not server.wire.closed
    server.app.transport.close()
    assert server.wire.closed


async def test_a_forged_record_ends_it() -> None:
    client, server = shaken()
    client.tls.write(b"x")
    sent = bytearray(client.wire.sent)
    sent[-1] ^= 1
    server.tls.data_received(bytes(sent))
    assert server.wire.closed
    assert server.wire.sent  # the alert
    server.tls.connection_lost(None)
    assert isinstance(server.app.lost[0], ssl.SSLError)
    assert server.app.got == b""


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff", b"\0" * 999])
async def test_no_tls_is_no_connection(noise: bytes) -> None:
    server = End(server_context())
    server.tls.connection_made(server.wire)
    server.tls.data_received(noise)
    assert server.wire.closed
    server.tls.connection_lost(None)
    assert isinstance(server.tls.opened.exception(), OSError)
    assert server.failures == 1
    assert len(server.app.lost) == 1


@pytest.mark.parametrize(
    ("name", "trusts", "reason"),
    [
        ("localhost", True, None),
        ("127.0.0.1", True, None),
        ("elsewhere", True, "Hostname mismatch"),
        ("127.0.0.2", True, "IP address mismatch"),
        ("localhost", False, "unable to get local issuer certificate"),
    ],
)
async def test_who_a_backend_is_gets_verified(name: str, trusts: bool, reason: str | None) -> None:
    context = client_context() if trusts else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client, server = shaken(client=context, name=name)
    if reason is None:
        assert client.tls.opened.exception() is None
        return
    client.tls.connection_lost(None)
    error = client.tls.opened.exception()
    assert isinstance(error, ssl.SSLCertVerificationError)
    assert reason in error.verify_message
    server.tls.connection_lost(None)
    assert (client.app.got, server.app.got) == (b"", b"")


async def test_a_handshake_that_takes_too_long_is_ended() -> None:
    server = End(server_context())
    server.tls.connection_made(server.wire)
    assert server.tls._deadline.at_s <= monotonic() + HANDSHAKE_S
    server.tls._deadline.at_s = monotonic() - 1
    server.tls._deadline._fire()
    assert server.wire.aborted
    server.tls.connection_lost(None)
    assert isinstance(server.app.lost[0], TimeoutError)


def test_the_authority_is_the_tests_own() -> None:
    assert b"BEGIN CERTIFICATE" in authority().cert_pem.bytes()


# A server's handshakes by turns ----------------------------------------------------------------


class Turns:
    """The part of a loop that a rota needs."""

    def __init__(self) -> None:
        self._next: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self._next.append(call)

    def turn(self) -> bool:
        calls, self._next = self._next, []
        for call in calls:
            call()
        return bool(calls)


def by_turns(count: int) -> tuple[Turns, list[End], list[End]]:
    """Servers with one rota, and their clients, which have said hello."""
    turns = Turns()
    loop: Any = turns
    rota = Rota(loop)
    servers = [End(server_context(), rota=rota) for _ in range(count)]
    clients = [End(client_context(), "localhost") for _ in range(count)]
    for client, server in zip(clients, servers, strict=True):
        server.tls.connection_made(server.wire)
        client.tls.connection_made(client.wire)
        deliver(client, server)
    return turns, clients, servers


async def test_of_many_handshakes_one_step_is_done_in_a_turn() -> None:
    turns, clients, servers = by_turns(20)
    answered = [sum(bool(each.wire.sent) for each in servers)]
    while turns.turn():
        answered.append(sum(bool(each.wire.sent) for each in servers))
    assert answered == list(range(21))
    for client, server in zip(clients, servers, strict=True):
        deliver(server, client)
        client.tls.write(b"hello")  # with the end of the handshake, in one piece
        deliver(client, server)
        assert server.app.got == b""
    while turns.turn():
        pass
    assert all(each.app.got == b"hello" for each in servers)
    assert all(each.tls.opened.done() for each in servers)


async def test_who_left_has_no_turn() -> None:
    turns, _, (first, second) = by_turns(2)
    first.tls.eof_received()
    first.tls.connection_lost(None)
    while turns.turn():
        pass
    assert (bool(first.wire.sent), bool(second.wire.sent)) == (False, True)
    assert first.failures == 1


async def test_what_comes_before_its_turn_is_bounded() -> None:
    turns, _, (server,) = by_turns(1)
    server.tls.data_received(b"x" * READ_BYTES)
    states = [server.wire.paused]
    assert server.tls._deadline.at_s <= monotonic() + HANDSHAKE_S  # from the start
    while turns.turn():
        pass
    states.append(server.wire.paused)
    assert states == [True, False]
    assert server.wire.closed  # that was no TLS


async def test_handshakes_at_the_data_port_go_by_its_turns() -> None:
    loop = asyncio.get_running_loop()
    backend = {"name": "b", "url": "http://10.0.0.1:1"}
    settings = Settings.model_validate({"pools": [{"name": "p", "backends": [backend]}]})
    new = draft(settings, {}, None, Certificates(server_context(), {}))
    plane = DataPlane(
        configure(new, loop, Names()), loop=loop, rng=Random(1), metrics=Metrics(["p"])
    )
    client, server, wire = End(client_context(), "localhost"), plane.client(), Wire()
    server.connection_made(wire)
    client.tls.connection_made(client.wire)
    server.data_received(client.wire.sent)
    assert (len(plane.rota), wire.sent) == (1, b"")
    await asyncio.sleep(0.01)
    assert len(plane.rota) == 0
    assert wire.sent
    wire.abort()
    server.connection_lost(None)
