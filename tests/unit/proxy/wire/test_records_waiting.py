"""Records that wait count for who sent them, and too many give way."""

from typing import Any

import pytest

from penstock.proxy.wire.ledger import STRANGERS_BYTES_MAX
from penstock.proxy.wire.party import STRANGERS
from penstock.proxy.wire.records import (
    RECORDS_MAX,
    RecordReads,
)
from penstock.proxy.wire.scheduler import Scheduler
from tests.certificates import client_context, server_context
from tests.unit.proxy.wire.test_records import TEXT, open_pair, reads_of, write_bytewise
from tests.unit.proxy.wire.tls_ends import End, Turns, deliver


class Waits:
    """A stranger whose records wait."""

    gone = False

    def give_way(self) -> None:
        self.gone = True


def crowd(reads: RecordReads) -> Waits:
    """Another stranger, that waits for as much as all may."""
    other = Waits()
    reads.waiting.add(other, STRANGERS, STRANGERS_BYTES_MAX)
    return other


def full_record(end: End) -> bytes:
    """One that the other end has not got yet."""
    end.tls.write(b"x" * 16_000)
    sent, end.wire.sent = end.wire.sent, b""
    return sent


@pytest.mark.parametrize("proven", [False, True])
async def test_what_of_a_stranger_waits_is_counted_until_it_is_deciphered(proven: bool) -> None:
    turns = Turns()
    reads = reads_of(turns)
    client, server = open_pair(reads, proven=proven)
    write_bytewise(client, b"x" * (10 * RECORDS_MAX))
    deliver(client, server)
    assert (reads.waiting.of(STRANGERS) > 0) is not proven
    while turns.turn():
        pass
    assert server.app.got == b"x" * (10 * RECORDS_MAX)
    assert reads.waiting.of(STRANGERS) == 0


async def test_a_part_of_a_strangers_record_is_kept_from_openssl_and_counted() -> None:
    reads = reads_of(Turns())
    client, server = open_pair(reads, proven=False)
    sent = full_record(client)
    for at in range(0, 15_000, 1_500):
        server.tls.data_received(sent[at : at + 1_500])
    assert server.tls._incoming.pending == 0
    assert reads.waiting.of(STRANGERS) == 15_000
    assert not server.wire.paused
    server.tls.data_received(sent[15_000:] + full_record(client)[:5_000])
    assert (len(server.app.got), reads.waiting.of(STRANGERS)) == (16_000, 5_000)
    server.tls.connection_lost(None)
    assert reads.waiting.of(STRANGERS) == 0


async def test_a_part_behind_the_handshake_is_kept_too() -> None:
    turns = Turns()
    loop: Any = turns
    reads = reads_of(turns)
    client = End(client_context(), "localhost", reads=reads)
    server = End(server_context(), reads=reads, rota=Scheduler(loop, 0.0), proven=False)
    server.tls.connection_made(server.wire)
    client.tls.connection_made(client.wire)
    deliver(client, server)
    turns.turn()
    deliver(server, client)
    finished, client.wire.sent = client.wire.sent, b""
    server.tls.data_received(finished + full_record(client)[:15_000])
    while turns.turn():
        pass
    assert server.tls.opened.done()
    assert server.tls._incoming.pending == 0
    assert reads.waiting.of(STRANGERS) == 15_000


async def test_openssl_gets_parts_of_who_has_shown_a_key() -> None:
    reads = reads_of(Turns())
    client, server = open_pair(reads, proven=False)
    sent = full_record(client) + full_record(client)
    server.tls.data_received(sent[:9_000])
    server.proven = True  # by the first record, say
    server.tls.data_received(sent[9_000:20_000])
    assert (len(server.app.got), reads.waiting.of(STRANGERS)) == (16_000, 0)
    assert server.tls._incoming.pending or len(server.tls._records) == 0
    server.tls.data_received(sent[20_000:])
    assert len(server.app.got) == 32_000


async def test_who_was_deciphered_gives_way_to_nobody() -> None:
    turns = Turns()
    reads = reads_of(turns)
    client, server = open_pair(reads, proven=False)
    write_bytewise(client, b"x" * (10 * RECORDS_MAX))
    deliver(client, server)
    while turns.turn():
        pass
    crowd(reads)
    assert server.app.got == b"x" * (10 * RECORDS_MAX)
    assert (server.refused, server.wire.is_closing()) == (False, False)


async def test_who_has_shown_a_key_meanwhile_gives_way_to_no_stranger() -> None:
    turns = Turns()
    reads = reads_of(turns)
    client, server = open_pair(reads, proven=False)
    write_bytewise(client, b"x" * (10 * RECORDS_MAX))
    deliver(client, server)
    server.proven = True  # by its first slice
    turns.turn()
    other = crowd(reads)
    assert not server.refused
    assert reads.waiting.of("tenant") > 0
    reads.waiting.free(1)  # where memory is short, strangers hold most
    assert (other.gone, server.refused) == (True, False)
    reads.waiting.free(1)
    assert server.refused


async def test_who_gives_way_is_told_and_nothing_of_it_is_deciphered() -> None:
    turns = Turns()
    reads = reads_of(turns)
    client, server = open_pair(reads)
    write_bytewise(client, TEXT)
    deliver(client, server)
    assert reads.waiting.of("tenant") > len(TEXT)  # not of its address
    reads.waiting.free(1)
    assert reads.waiting.of("tenant") == 0
    deliver(server, client)
    assert (client.app.got, client.app.ended) == (b"no room", 1)
    while turns.turn():
        pass
    assert (server.app.got, server.wire.paused) == (b"", False)
    assert not server.wire.aborted


async def test_who_gives_way_before_its_handshake_is_cut() -> None:
    server = End(server_context(), proven=False)
    server.tls.connection_made(server.wire)
    server.tls.give_way()
    assert (server.refused, server.wire.aborted) == (False, True)
