"""Reads of a great many TLS records: how many are deciphered in a turn, on either leg."""

import ssl
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from penstock.proxy.wire.records import (
    AT_ONCE_MAX,
    BARREN_COST,
    BARREN_FREE,
    BARREN_MAX,
    FEW_RECORDS,
    RECORDS_MAX,
    RecordReads,
)
from penstock.proxy.wire.scheduler import AT_ONCE_S
from tests.certificates import client_context, server_context
from tests.unit.proxy.wire.forged_records import Forger
from tests.unit.proxy.wire.tls_ends import End, Turns, deliver

READ_BYTES = 262_144

Forged = Callable[[RecordReads], tuple[End, Forger]]


def reads_of(turns: Turns) -> RecordReads:
    """Of which one slice is taken in a turn."""
    loop: Any = turns
    return RecordReads(loop, turn_s=0.0)


def open_pair(
    reads: RecordReads, context: ssl.SSLContext | None = None, *, proven: bool = True
) -> tuple[End, End]:
    """A client and a server after their handshake; both take their reads by these turns."""
    client = End(context or client_context(), "localhost", reads=reads)
    server = End(server_context(), reads=reads, proven=proven)
    server.tls.connection_made(server.wire)
    client.tls.connection_made(client.wire)
    while client.wire.sent or server.wire.sent:
        deliver(client, server)
        deliver(server, client)
    return client, server


def write_bytewise(end: End, data: bytes) -> None:
    for at in range(len(data)):
        end.tls.write(data[at : at + 1])


@pytest.fixture
def forged(tmp_path: Path) -> Forged:
    """Servers, and who forges what their clients send next."""

    def pair(reads: RecordReads) -> tuple[End, Forger]:
        context = client_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.keylog_filename = str(tmp_path / "keys")
        _, server = open_pair(reads, context)
        return server, Forger(tmp_path / "keys")

    return pair


TEXT = bytes(range(250)) * 4


@pytest.mark.parametrize("leg", ["client", "backend"])
async def test_of_many_records_a_slice_is_deciphered_in_a_turn(leg: str) -> None:
    turns = Turns()
    client, server = open_pair(reads_of(turns))
    source, to = (client, server) if leg == "client" else (server, client)
    write_bytewise(source, TEXT)
    deliver(source, to)
    assert (to.app.got, to.wire.paused, to.tls.is_reading()) == (b"", True, False)
    got = [0]
    while turns.turn():
        got.append(len(to.app.got))
    steps = [after - before for before, after in pairwise(got)]
    assert max(steps) == RECORDS_MAX
    assert len([step for step in steps if step]) == -(-len(TEXT) // RECORDS_MAX)
    assert (to.app.got, to.wire.paused) == (TEXT, False)
    source.tls.write(b"more")
    deliver(source, to)
    assert to.app.got == TEXT + b"more"


async def test_reads_of_full_records_are_taken_whole() -> None:
    turns = Turns()
    client, server = open_pair(reads_of(turns))
    client.tls.write(b"x" * 1_048_576)
    sent = deliver(client, server, READ_BYTES)
    assert server.app.pieces == -(-len(sent) // READ_BYTES)
    assert not server.wire.paused
    assert len(server.app.got) == 1_048_576


async def test_of_many_connections_so_many_records_are_deciphered_at_once() -> None:
    turns = Turns()
    reads = reads_of(turns)
    pairs = []
    for _ in range(21):
        pairs.append(open_pair(reads))
        turns.turn()
    few, beside = pairs.pop()
    reads.rota.left_s = AT_ONCE_S  # a new turn
    for client, server in pairs:
        write_bytewise(client, TEXT[:30])
        deliver(client, server)
    assert sum(len(server.app.got) for _, server in pairs) == AT_ONCE_MAX // 30 * 30
    write_bytewise(few, TEXT[:FEW_RECORDS])
    deliver(few, beside)
    assert beside.app.got == TEXT[:FEW_RECORDS]  # waits for nobody
    while turns.turn():
        pass
    assert all(server.app.got == TEXT[:30] for _, server in pairs)


@pytest.mark.parametrize("asks", [False, True])
async def test_who_only_changes_keys_is_let_go(forged: Forged, asks: bool) -> None:
    turns = Turns()
    server, forger = forged(reads_of(turns))
    server.tls.data_received(b"".join(forger.key_update(asks=asks) for _ in range(1_000)))
    count = 0
    while turns.turn():
        count += 1
    assert server.wire.aborted
    assert count <= BARREN_MAX // RECORDS_MAX + 3
    assert len(server.wire.sent) <= 40 * (BARREN_MAX + RECORDS_MAX)  # what was answered
    server.tls.connection_lost(None)
    assert isinstance(server.app.lost[0], ConnectionAbortedError)


async def test_who_changes_keys_and_sends_is_kept(
    forged: Forged,
) -> None:
    turns = Turns()
    server, forger = forged(reads_of(turns))
    for at in range(2 * BARREN_MAX):
        server.tls.data_received(forger.key_update(asks=False) + forger.data(TEXT[at : at + 1]))
        turns.turn()
    assert server.app.got == TEXT[: 2 * BARREN_MAX]
    assert not server.wire.closed


async def test_who_changes_keys_twice_for_each_record_of_data_is_let_go(
    forged: Forged,
) -> None:
    turns = Turns()
    server, forger = forged(reads_of(turns))
    for _ in range(BARREN_MAX):
        assert not server.wire.closed
        server.tls.data_received(
            forger.key_update(asks=False) + forger.key_update(asks=False) + forger.data(b"x")
        )
        turns.turn()
    server.tls.data_received(forger.key_update(asks=False) + forger.key_update(asks=False))
    while turns.turn():
        pass
    assert server.wire.aborted


async def test_a_few_changes_of_keys_on_each_of_many_connections_are_counted(
    forged: Forged,
) -> None:
    """As many records of data beside them excuse none."""
    turns = Turns()
    reads = reads_of(turns)
    pairs = FEW_RECORDS // 2
    servers, reads_to_come = [], []
    for _ in range(40):
        server, forger = forged(reads)
        servers.append(server)
        reads_to_come.append(
            b"".join(forger.key_update(asks=False) + forger.data(b"x") for _ in range(pairs))
        )
        while turns.turn():
            pass
    for server, data in zip(servers, reads_to_come, strict=True):
        server.tls.data_received(data)
    at_once = sum(bool(server.app.got) for server in servers)
    assert at_once <= AT_ONCE_MAX // (BARREN_COST * pairs) + 1
    while turns.turn():
        pass
    assert all(server.app.got == b"x" * pairs for server in servers)


async def test_of_who_has_changed_keys_often_single_records_are_counted_too(
    forged: Forged,
) -> None:
    turns = Turns()
    reads = reads_of(turns)
    server, forger = forged(reads)
    for at in range(BARREN_FREE + 1):
        server.tls.data_received(forger.key_update(asks=False))
        server.tls.data_received(forger.data(TEXT[at : at + 1]))
        turns.turn()
    assert server.app.got == TEXT[: BARREN_FREE + 1]
    reads.charge(AT_ONCE_MAX)
    server.tls.data_received(forger.data(b"x"))
    assert (server.wire.paused, len(server.app.got)) == (True, BARREN_FREE + 1)
    while turns.turn():
        pass
    assert (server.wire.paused, server.app.got[-1:]) == (False, b"x")


async def test_a_change_of_keys_counts_for_more(
    forged: Forged,
) -> None:
    """Of what all may have deciphered at once."""
    turns = Turns()
    reads = reads_of(turns)
    server, forger = forged(reads)
    reads.rota.left_s = AT_ONCE_S  # a new turn
    updates = AT_ONCE_MAX // BARREN_COST // FEW_RECORDS * FEW_RECORDS
    for _ in range(updates // FEW_RECORDS):
        server.tls.data_received(
            b"".join(forger.key_update(asks=False) for _ in range(FEW_RECORDS))
        )
    assert not server.wire.paused
    server.tls.data_received(b"".join(forger.data(b"x") for _ in range(FEW_RECORDS + 1)))
    assert (server.wire.paused, server.app.got) == (True, b"")
    while turns.turn():
        pass
    assert (server.wire.paused, server.app.got) == (False, b"xxxxx")


async def test_answers_of_ours_that_are_not_taken_end_the_reading(
    forged: Forged,
) -> None:
    turns = Turns()
    server, forger = forged(reads_of(turns))
    pairs = 100
    data = b"".join(
        forger.key_update(asks=True) + forger.data(TEXT[at : at + 1]) for at in range(pairs)
    )
    server.tls.pause_writing()  # too much waits already
    server.tls.data_received(data)
    while turns.turn():
        pass
    assert 0 < len(server.app.got) <= RECORDS_MAX
    assert server.wire.paused
    answered = len(server.wire.sent)
    assert answered <= 40 * RECORDS_MAX
    server.tls.resume_writing()
    while turns.turn():
        pass
    assert (server.app.got, server.wire.paused) == (TEXT[:pairs], False)
    assert len(server.wire.sent) > answered


def half_read() -> tuple[Turns, End]:
    """A server that has had two of the slices that its client's records make."""
    turns = Turns()
    client, server = open_pair(reads_of(turns))
    write_bytewise(client, TEXT)
    deliver(client, server)
    turns.turn()
    turns.turn()
    return turns, server


async def test_who_pauses_reading_is_given_nothing() -> None:
    turns, server = half_read()
    got = len(server.app.got)
    assert 0 < got < len(TEXT)
    server.app.transport.pause_reading()
    while turns.turn():
        pass
    assert len(server.app.got) == got
    server.app.transport.resume_reading()
    assert server.wire.paused  # what waits comes first
    while turns.turn():
        pass
    assert (server.app.got, server.wire.paused) == (TEXT, False)


@pytest.mark.parametrize("how", ["close", "abort", "lost", "end"])
async def test_after_the_end_nothing_that_waited_comes(how: str) -> None:
    turns, server = half_read()
    got = server.app.got
    if how == "end":
        server.tls.eof_received()  # a bare FIN
    elif how == "lost":
        server.wire.closed = True
    else:
        getattr(server.app.transport, how)()
    if how != "close":
        server.tls.connection_lost(None)
    while turns.turn():
        pass
    assert server.app.got == got


async def test_what_waited_when_one_direction_ended_is_counted() -> None:
    turns = Turns()
    client, server = open_pair(reads_of(turns))
    write_bytewise(client, TEXT)
    size = len(deliver(client, server))
    server.app.transport.write(b"refused")
    server.app.transport.write_eof()
    while turns.turn():
        pass
    assert (len(server.app.got), server.wire.paused) == (size, False)
    assert not server.wire.closed


async def test_the_end_comes_behind_what_waited() -> None:
    turns = Turns()
    client, server = open_pair(reads_of(turns))
    write_bytewise(client, TEXT)
    client.app.transport.close()
    deliver(client, server)
    ends = []
    while turns.turn():
        ends.append((server.app.ended, len(server.app.got)))
    assert next(got for ended, got in ends if ended) == len(TEXT)
    assert server.wire.closed


async def test_who_fails_in_a_turn_is_gone() -> None:
    turns = Turns()
    client, server = open_pair(reads_of(turns))
    server.app.fails = True
    write_bytewise(client, TEXT)
    deliver(client, server)
    while turns.turn():
        pass
    assert server.wire.aborted
