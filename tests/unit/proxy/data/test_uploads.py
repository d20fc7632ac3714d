"""What a client's connection does while it sends much: it is paused with others, and lets go."""

import asyncio
from io import BytesIO
from typing import Any

import pytest

from penstock.proxy.data.body_reads import TURN_BYTES
from penstock.proxy.data.freeing import LARGE_BYTES
from penstock.proxy.data.listener import ClientConnection
from penstock.proxy.data.phase import Phase
from penstock.proxy.data.plane import DataPlane
from tests.unit.proxy.data import test_waiting_bodies
from tests.unit.proxy.data.test_waiting_bodies import plane

READ = b" " * 262_144
LENGTH = b"content-length: 8388608"


class Wire(test_waiting_bodies.Wire):
    def can_write_eof(self) -> bool:
        return False


def upload(it: DataPlane, framing: bytes = LENGTH) -> tuple[ClientConnection, Wire]:
    """A client that has sent the head of a long body."""
    wire = Wire("192.0.2.1")
    connection = ClientConnection(it)
    connection.connection_made(wire)
    lines = (b"POST /v1/completions HTTP/1.1", b"host: x", framing, b"", b"")
    connection.data_received(b"\r\n".join(lines))
    assert connection._phase is Phase.BODY
    return connection, wire


def fill(connection: ClientConnection, wire: Wire, read: bytes = READ) -> int:
    """Send as fast as it is read; returns how many reads that were."""
    reads = 0
    while wire.is_reading() and reads < 32:
        connection.data_received(read)
        reads += 1
    return reads


async def test_a_fast_body_pauses_all_senders_and_all_go_on() -> None:
    it = plane()
    fast, other = upload(it), upload(it)
    assert fill(*fast) == TURN_BYTES // len(READ)
    assert not other[1].is_reading()
    for _ in range(3):
        await asyncio.sleep(0)
    assert fast[1].is_reading()
    assert other[1].is_reading()
    for connection, _ in (fast, other):
        connection.connection_lost(None)
    assert not len(it.body_reads)


async def test_a_body_taken_in_slices_is_left_to_them_until_its_next_whole_read() -> None:
    it = plane()
    connection, wire = upload(it, b"transfer-encoding: chunked")
    assert len(it.body_reads) == 1
    connection.data_received(b"1\r\n \r\n" * 10_000)
    assert not wire.is_reading()
    assert not len(it.body_reads)
    while not wire.is_reading():
        await asyncio.sleep(0)
    connection.data_received(b"1\r\n \r\n")
    assert len(it.body_reads) == 1
    connection.connection_lost(None)
    assert not len(it.body_reads)


async def test_a_client_that_floods_beside_its_answer_is_paused_too() -> None:
    it = plane()
    connection, wire = upload(it)
    connection._body, connection._phase = None, Phase.ANSWER
    assert fill(connection, wire) == TURN_BYTES // len(READ)
    await asyncio.sleep(0)
    assert wire.is_reading()
    connection.connection_lost(None)
    assert not len(it.body_reads)


async def test_a_refused_body_is_paused_too_while_it_is_dropped() -> None:
    it = plane()
    connection, wire = upload(it, b"transfer-encoding: chunked")
    connection.data_received(b"no chunk\r\n")
    assert connection._phase is Phase.LINGER
    assert not len(it.body_reads)
    assert fill(connection, wire) == TURN_BYTES // len(READ)
    await asyncio.sleep(0)
    assert wire.is_reading()
    connection.connection_lost(None)
    assert not len(it.body_reads)


async def test_a_body_that_finds_no_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    it = plane()
    connection, wire = upload(it)

    class Full(BytesIO):
        def write(self, piece: Any) -> int:
            raise MemoryError

    monkeypatch.setattr(connection._body, "_data", Full())
    connection.data_received(READ)
    assert wire.sent.startswith(b"HTTP/1.1 429 ")
    assert connection._phase is Phase.LINGER
    assert it.bodies.held_bytes == 0
    connection.connection_lost(None)


async def test_what_had_come_of_a_long_body_is_freed_in_its_turn() -> None:
    it = plane()
    connection, _ = upload(it)
    for _ in range(LARGE_BYTES // len(READ)):
        connection.data_received(READ)
    connection.connection_lost(None)
    assert len(it.freeing) == 1
    await asyncio.sleep(0)
    assert not len(it.freeing)
