"""What a client's connection does while it sends much: it is paused with others, and lets go."""

import asyncio
import math
from io import BytesIO
from typing import Any

import pytest

from penstock.proxy.data.ending import Phase
from penstock.proxy.data.listener import (
    FEW_LINE_ENDS,
    LINE_END_S,
    READ_S,
    SLICE_BYTES,
    ClientConnection,
)
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.wire.scheduler import AT_ONCE_S, FREED_BYTES, Scheduler
from tests.unit.proxy.data.test_listener import Wire, connected
from tests.unit.proxy.data.test_waiting_bodies import plane

READ = b" " * 262_144
LENGTH = b"content-length: 8388608"


def upload(
    it: DataPlane, framing: bytes = LENGTH, address: str = "192.0.2.1"
) -> tuple[ClientConnection, Wire]:
    """A client that has sent the head of a long body."""
    connection, wire = connected(it, Wire(address))
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


def reads_at_once() -> int:
    """How many reads of a body fit into a turn; the last one may go beyond it."""
    return math.ceil(AT_ONCE_S / READ_S)


async def run(it: DataPlane) -> int:
    """Run until nothing waits; returns how many turns that took."""
    turns = 0
    while len(it.scheduler):
        await asyncio.sleep(0)
        turns += 1
    return turns


async def test_a_fast_body_is_read_up_to_the_limit_in_each_turn() -> None:
    it = plane()
    fast, other = upload(it), upload(it)
    assert reads_at_once() - 1 <= fill(*fast) <= reads_at_once()
    assert fill(*other) == 1  # the loop reads it once before it is paused, too
    await run(it)
    assert fast[1].is_reading()
    assert other[1].is_reading()


async def test_however_many_send_together_they_take_turns_by_whose_they_are() -> None:
    it = plane()
    many = [upload(it) for _ in range(30)]
    one = upload(it, address="192.0.2.2")
    sent = dict.fromkeys([wire for _, wire in (*many, one)], 0)
    for _ in range(12):
        before = sum(sent.values())
        for connection, wire in (*many, one):
            if sent[wire] < 30:  # the body does not end
                sent[wire] += fill(connection, wire)
        assert sum(sent.values()) - before <= reads_at_once() + 31
        await asyncio.sleep(0)
    assert sent[one[1]] >= 10


async def test_a_client_that_left_is_not_read_again() -> None:
    it = plane()
    connection, wire = upload(it)
    fill(connection, wire)
    connection.connection_lost(None)
    wire.abort()
    await run(it)
    assert not wire.is_reading()


CHUNK = b"1\r\n \r\n"
MANY = CHUNK * 20_000


async def test_a_read_of_very_many_chunks_is_taken_in_slices() -> None:
    it = plane()
    it.scheduler = Scheduler(it.loop, 0.0, lambda: 0.0)
    connection, wire = upload(it, b"transfer-encoding: chunked")
    connection.data_received(CHUNK * 1_000)
    assert (wire.is_reading(), connection.body_bytes) == (True, 1_000)
    connection.data_received(MANY)
    assert not wire.is_reading()
    assert it.ledger.of("192.0.2.1") == len(MANY)
    assert await run(it) == -(-len(MANY) // SLICE_BYTES)
    assert wire.is_reading()
    assert not it.ledger.held_bytes
    assert connection.body_bytes == 21_000


async def test_of_many_clients_so_many_chunks_are_taken_at_once_in_a_turn() -> None:
    it = plane()
    it.scheduler = Scheduler(it.loop, 0.0, lambda: 0.0)
    senders = [upload(it, b"transfer-encoding: chunked") for _ in range(100)]
    await run(it)
    for connection, _ in senders:
        connection.data_received(CHUNK * 1_000)
    at_once = sum(connection.body_bytes > 0 for connection, _ in senders)
    assert at_once * 2_000 * LINE_END_S <= AT_ONCE_S
    few = upload(it, b"transfer-encoding: chunked", address="192.0.2.2")
    few[0].data_received(CHUNK * (FEW_LINE_ENDS // 2))
    assert few[0].body_bytes == FEW_LINE_ENDS // 2  # does not wait for them
    await run(it)
    assert all(connection.body_bytes == 1_000 for connection, _ in senders)
    assert all(wire.is_reading() for _, wire in senders)


async def test_where_memory_is_short_who_holds_most_of_what_waits_gives_way() -> None:
    it = plane()
    it.scheduler = Scheduler(it.loop, 0.0, lambda: 0.0)
    chunked = b"transfer-encoding: chunked"
    many = [upload(it, chunked) for _ in range(3)]
    few = upload(it, chunked, address="192.0.2.2")
    for connection, _ in (*many, few):
        connection.data_received(MANY)
    it.ledger.free(2 * len(MANY))
    assert [wire.sent.startswith(b"HTTP/1.1 429 ") for _, wire in many] == [True, True, False]
    assert not few[1].sent
    await run(it)
    for connection, _ in (*many, few):
        connection.connection_lost(None)
    assert not it.ledger.held_bytes


async def test_a_client_that_floods_beside_its_answer_is_paused_too() -> None:
    it = plane()
    connection, wire = upload(it)
    connection._body, connection._phase = None, Phase.ANSWER
    assert fill(connection, wire) <= reads_at_once()
    await run(it)
    assert wire.is_reading()


async def test_a_refused_body_is_paused_too_while_it_is_dropped() -> None:
    it = plane()
    connection, wire = upload(it, b"transfer-encoding: chunked")
    connection.data_received(b"no chunk\r\n")
    assert connection._phase is Phase.LINGER
    for _ in range(2):
        it.scheduler.spend(AT_ONCE_S)
        assert fill(connection, wire) == 1
        await run(it)
        assert wire.is_reading()


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


async def test_what_had_come_of_a_long_body_is_freed_in_its_turn() -> None:
    it = plane()
    connection, _ = upload(it)
    for _ in range(FREED_BYTES // len(READ)):
        connection.data_received(READ)
    connection.connection_lost(None)
    assert len(it.scheduler) == 1
    await run(it)
