"""The TLS layer by transcript: two of them back to back, no socket."""

import asyncio
import gc
import ssl
from random import Random
from time import monotonic

import pytest

from penstock.conf.settings import Settings
from penstock.proxy.data.configuration import configure, draft
from penstock.proxy.data.listener import ClientConnection
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.data.port import client_of
from penstock.proxy.telemetry.metrics import Metrics
from penstock.proxy.wire.certificates import Certificates
from penstock.proxy.wire.host import Names
from penstock.proxy.wire.scheduler import Scheduler
from penstock.proxy.wire.tls import READ_BYTES
from tests.certificates import client_context, server_context
from tests.unit.proxy.turns import Turns
from tests.unit.proxy.wire.tls_ends import HANDSHAKE_S, End, Wire, connect, deliver, shaken


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
    await asyncio.sleep(0)  # long noise waits for a turn
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


# A server's handshakes by turns ----------------------------------------------------------------


def by_turns(count: int) -> tuple[Turns, list[End], list[End]]:
    """Servers with one rota, and their clients, which have said hello."""
    turns = Turns()
    rota = Scheduler(turns.loop, 0.0, lambda: 0.0)
    servers = [End(server_context(), rota=rota) for _ in range(count)]
    clients = [End(client_context(), "localhost") for _ in range(count)]
    for client, server in zip(clients, servers, strict=True):
        connect(client, server)
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
    turns.run()
    assert all(each.app.got == b"hello" for each in servers)
    assert all(each.tls.opened.done() for each in servers)


async def test_who_left_has_no_turn() -> None:
    turns, _, (first, second) = by_turns(2)
    first.tls.eof_received()
    first.tls.connection_lost(None)
    turns.run()
    assert (bool(first.wire.sent), bool(second.wire.sent)) == (False, True)
    assert first.failures == 1


async def test_what_comes_before_its_turn_is_bounded() -> None:
    turns, (client,), (server,) = by_turns(1)
    turns.run()
    deliver(server, client)
    client.tls.write(b"x" * 2 * READ_BYTES)  # with the end of the handshake
    deliver(client, server)
    states = [server.wire.paused]
    assert server.tls._deadline.at_s <= monotonic() + HANDSHAKE_S  # from the start
    turns.run()
    states.append(server.wire.paused)
    assert states == [True, False]
    assert server.app.got == b"x" * 2 * READ_BYTES
    turns, _, (server,) = by_turns(1)
    server.tls.data_received(b"x" * READ_BYTES)
    turns.run()
    assert server.wire.closed  # that was no TLS


def data_plane() -> DataPlane:
    loop = asyncio.get_running_loop()
    backend = {"name": "b", "url": "http://10.0.0.1:1"}
    settings = Settings.model_validate({"pools": [{"name": "p", "backends": [backend]}]})
    new = draft(settings, {}, None, Certificates(server_context(), {}))
    return DataPlane(
        configure(new, loop, Names()), loop=loop, rng=Random(1), metrics=Metrics(["p"])
    )


async def test_handshakes_of_many_strangers_delay_no_body() -> None:
    plane = data_plane()
    client = End(client_context(), "localhost")
    client.tls.connection_made(client.wire)
    wires = [Wire(f"192.0.2.{number}") for number in range(200)]
    servers = [client_of(plane) for _ in wires]
    for server, wire in zip(servers, wires, strict=True):
        server.connection_made(wire)
        server.data_received(client.wire.sent)
    answered: list[int] = []  # before each step of the body

    def step() -> bool:
        answered.append(sum(bool(wire.sent) for wire in wires))
        return len(answered) < 5

    plane.scheduler.add("tenant", step)
    while len(plane.scheduler):
        await asyncio.sleep(0)
    assert answered[0] < 100
    while len(plane.handshakes):
        await asyncio.sleep(0)
    assert all(wire.sent for wire in wires)
    for server, wire in zip(servers, wires, strict=True):
        wire.abort()
        server.connection_lost(None)


async def test_a_hello_is_no_longer_than_it_need_be() -> None:
    """OpenSSL compares each of a client's keys with each of its groups."""
    turns = Turns()
    server = End(server_context(), rota=Scheduler(turns.loop, 0.0, lambda: 0.0))
    server.tls.connection_made(server.wire)
    server.tls.data_received(b"\x16\x03\x01\x3f\xff" + b"x" * 0x3FFF)
    turns.run()
    assert server.wire.closed
    assert not server.wire.sent


async def test_a_clients_connection_that_is_lost_is_freed_at_once() -> None:
    """Closing it when memory is short would free nothing otherwise."""
    plane = data_plane()
    gc.collect()
    gc.disable()
    try:
        server, wire = client_of(plane), Wire()
        server.connection_made(wire)
        server.connection_lost(None)
        del server
        await asyncio.sleep(0)
        assert not [one for one in gc.get_objects() if isinstance(one, ClientConnection)]
    finally:
        gc.enable()
