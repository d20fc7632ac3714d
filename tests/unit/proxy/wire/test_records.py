"""Reads of a great many TLS records: where they end, how many are deciphered in a turn, and who
gives way when too many wait."""

import asyncio
import ssl
from collections.abc import Callable
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random

import pytest

from penstock.proxy.wire.certificates import ClientCertificate
from penstock.proxy.wire.handshakes import ClientHandshakes
from penstock.proxy.wire.ledger import STRANGERS, STRANGERS_BYTES_MAX
from penstock.proxy.wire.records import (
    AT_ONCE_MAX,
    BARREN_COST,
    FEW_RECORDS,
    HEAD_BYTES,
    RECORDS_MAX,
    RecordReads,
    Records,
)
from penstock.proxy.wire.scheduler import AT_ONCE_S, Scheduler
from penstock.proxy.wire.tls import HELLO_BYTES, SHOWN_BYTES_MAX, SHOWN_TIMES
from tests.certificates import authority, client_certificate, client_context, server_context
from tests.unit.proxy.turns import Turns
from tests.unit.proxy.wire.forged_records import Forger
from tests.unit.proxy.wire.test_ledger import Item
from tests.unit.proxy.wire.tls_ends import End, connect, deliver, shake

READ_BYTES = 262_144

Forged = Callable[[], tuple[Turns, RecordReads, End, Forger]]


def reads_of(turns: Turns) -> RecordReads:
    """Of which one slice is taken in a turn."""
    return RecordReads(turns.loop, turn_s=0.0)


def open_pair(
    reads: RecordReads, context: ssl.SSLContext | None = None, *, proven: bool = True
) -> tuple[End, End]:
    """A client and a server after their handshake; both take their reads by these turns."""
    client = End(context or client_context(), "localhost", reads=reads)
    server = End(server_context(), reads=reads, proven=proven)
    connect(client, server)
    return shake(client, server)


def write_bytewise(end: End, data: bytes) -> None:
    for at in range(len(data)):
        end.tls.write(data[at : at + 1])


def sent_bytewise(data: bytes, *, proven: bool = True) -> tuple[Turns, RecordReads, End, End]:
    """A client, and a server at which that waits in as many records as it has bytes."""
    turns = Turns()
    reads = reads_of(turns)
    client, server = open_pair(reads, proven=proven)
    write_bytewise(client, data)
    deliver(client, server)
    return turns, reads, client, server


@pytest.fixture
def forged(tmp_path: Path) -> Forged:
    """Servers that share their turns, and who forges what their clients send next."""

    turns = Turns()
    reads = reads_of(turns)

    def pair() -> tuple[Turns, RecordReads, End, Forger]:
        context = client_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.keylog_filename = str(tmp_path / "keys")
        _, server = open_pair(reads, context)
        return turns, reads, server, Forger(tmp_path / "keys")

    return pair


TEXT = bytes(range(250)) * 4
MANY = b"x" * (10 * RECORDS_MAX)


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
    turns.run()
    assert all(server.app.got == TEXT[:30] for _, server in pairs)


@pytest.mark.parametrize("asks", [False, True])
async def test_who_only_changes_keys_has_a_slice_in_a_turn(forged: Forged, asks: bool) -> None:
    turns, _, server, forger = forged()
    server.tls.data_received(forger.key_updates(1_000, asks=asks))
    count = 0
    while turns.turn():
        count += 1
        assert len(server.wire.sent) <= 40 * RECORDS_MAX * count
    assert count >= 1_000 // RECORDS_MAX
    server.tls.data_received(forger.data(b"x"))
    assert (server.app.got, server.wire.paused) == (b"x", False)


async def test_a_few_changes_of_keys_on_each_of_many_connections_are_counted(
    forged: Forged,
) -> None:
    """As many records of data beside them excuse none."""
    pairs = FEW_RECORDS // 2
    servers, reads_to_come = [], []
    for _ in range(40):
        turns, _, server, forger = forged()
        servers.append(server)
        reads_to_come.append(
            b"".join(forger.key_update(asks=False) + forger.data(b"x") for _ in range(pairs))
        )
        turns.run()
    for server, data in zip(servers, reads_to_come, strict=True):
        server.tls.data_received(data)
    at_once = sum(bool(server.app.got) for server in servers)
    assert at_once <= AT_ONCE_MAX // (BARREN_COST * pairs) + 1
    turns.run()
    assert all(server.app.got == b"x" * pairs for server in servers)


async def test_where_too_much_was_done_at_once_single_records_wait_too(forged: Forged) -> None:
    turns, reads, server, forger = forged()
    turns.turn()
    reads.charge(AT_ONCE_MAX + 1)
    server.tls.data_received(forger.data(b"x"))
    assert (server.wire.paused, server.app.got) == (True, b"")
    turns.run()
    assert (server.wire.paused, server.app.got) == (False, b"x")


async def test_a_change_of_keys_counts_for_more(forged: Forged) -> None:
    """Of what all may have deciphered at once."""
    turns, reads, server, forger = forged()
    reads.rota.left_s = AT_ONCE_S  # a new turn
    updates = AT_ONCE_MAX // BARREN_COST // FEW_RECORDS * FEW_RECORDS
    for _ in range(updates // FEW_RECORDS):
        server.tls.data_received(forger.key_updates(FEW_RECORDS))
    assert not server.wire.paused
    server.tls.data_received(b"".join(forger.data(b"x") for _ in range(FEW_RECORDS + 1)))
    assert (server.wire.paused, server.app.got) == (True, b"")
    turns.run()
    assert (server.wire.paused, server.app.got) == (False, b"xxxxx")


async def test_answers_of_ours_that_are_not_taken_end_the_reading(forged: Forged) -> None:
    turns, _, server, forger = forged()
    pairs = 100
    data = b"".join(
        forger.key_update(asks=True) + forger.data(TEXT[at : at + 1]) for at in range(pairs)
    )
    server.tls.pause_writing()  # too much waits already
    server.tls.data_received(data)
    turns.run()
    assert 0 < len(server.app.got) <= RECORDS_MAX
    assert server.wire.paused
    answered = len(server.wire.sent)
    assert answered <= 40 * RECORDS_MAX
    server.tls.resume_writing()
    turns.run()
    assert (server.app.got, server.wire.paused) == (TEXT[:pairs], False)
    assert len(server.wire.sent) > answered


def half_read() -> tuple[Turns, End]:
    """A server that has had two of the slices that its client's records make."""
    turns, _, _, server = sent_bytewise(TEXT)
    turns.turn()
    turns.turn()
    return turns, server


async def test_who_pauses_reading_is_given_nothing() -> None:
    turns, server = half_read()
    got = len(server.app.got)
    assert 0 < got < len(TEXT)
    server.app.transport.pause_reading()
    turns.run()
    assert len(server.app.got) == got
    server.app.transport.resume_reading()
    assert server.wire.paused  # what waits comes first
    turns.run()
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
    turns.run()
    assert server.app.got == got


async def test_what_waited_when_one_direction_ended_is_counted() -> None:
    turns = Turns()
    client, server = open_pair(reads_of(turns))
    write_bytewise(client, TEXT)
    size = len(deliver(client, server))
    server.app.transport.write(b"refused")
    server.app.transport.write_eof()
    turns.run()
    assert (len(server.app.got), server.wire.paused) == (size, False)
    assert not server.wire.closed


async def test_the_end_comes_behind_what_waited() -> None:
    turns, _, client, server = sent_bytewise(TEXT)
    client.app.transport.close()
    deliver(client, server)
    while not server.app.ended:
        assert turns.turn()
    assert server.app.got == TEXT
    assert server.wire.closed


async def test_who_fails_in_a_turn_is_gone() -> None:
    turns, _, _, server = sent_bytewise(TEXT)
    server.app.fails = True
    turns.run()
    assert server.wire.aborted


# Where records end -----------------------------------------------------------------------------


def record(size: int) -> bytes:
    return b"\x17\x03\x03" + size.to_bytes(2, "big") + b"\xff" * size


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_slices_are_whole_records_in_order(seed: int, single: bool) -> None:
    rng = Random(seed)
    sizes = [rng.choice((19, 20, 24, 300, 16_401)) for _ in range(300)]
    sent = b"".join(record(size) for size in sizes)
    ends = set(accumulate(size + HEAD_BYTES for size in sizes))
    records, slices, ended, at = Records(single=single), [], 0, 0
    while at < len(sent):
        size = rng.choice((1, 2, 4, 6, 700, 40_000))
        records.add(sent[at : at + size])
        at += size
        while records.left:
            fits = records.fits
            slices.append(bytes(records.take()))
            assert 0 < records.count <= (1 if single else RECORDS_MAX)
            ended += records.count
            assert fits is not records.left
            assert sum(len(piece) for piece in slices) in ends
    assert b"".join(slices) == sent
    assert (ended, len(records)) == (300, 0)


def test_one_whole_record_is_told_from_all_else() -> None:
    records = Records()
    assert records.is_one(record(30))
    assert not records.is_one(record(30) + record(30))
    assert not records.is_one(record(30)[:-1])
    records.add(record(30)[:7])
    assert not records.is_one(record(30))


@pytest.mark.parametrize(
    ("data", "taken"),
    [
        (record(16_000)[:9_000], 0),
        (record(30) + record(16_000)[:9_000], 35),
        (b"\x16" + record(16_000)[1:9_000], 0),
        (record(18_500)[:9_000], 9_000),  # longer than any record
        (record(30) + b"GET / HTTP/1.1\r\n", 51),
        (b"\x80\x2e\x01\x03\x03" + record(30), 40),  # a hello of SSL 2
    ],
)
def test_openssl_gets_parts_only_of_what_it_refuses(data: bytes, taken: int) -> None:
    records = Records()
    records.add(data)
    assert (records.left, records.fits) == (taken > 0, True)
    assert len(records.take()) == taken
    assert len(records) == len(data) - taken


# Who gives way ---------------------------------------------------------------------------------


def crowd(reads: RecordReads) -> Item:
    """Another stranger, that waits for as much as all may."""
    other = Item()
    reads.waiting.add(other, STRANGERS, STRANGERS_BYTES_MAX)
    return other


def full_record(end: End) -> bytes:
    """One that the other end has not got yet."""
    end.tls.write(b"x" * 16_000)
    sent, end.wire.sent = end.wire.sent, b""
    return sent


@pytest.mark.parametrize("proven", [False, True])
async def test_what_of_a_stranger_waits_is_counted_until_it_is_deciphered(proven: bool) -> None:
    turns, reads, _, server = sent_bytewise(MANY, proven=proven)
    assert (reads.waiting.of(STRANGERS) > 0) is not proven
    turns.run()
    assert server.app.got == MANY
    assert reads.waiting.of(STRANGERS) == 0
    crowd(reads)
    assert (server.refused, server.wire.is_closing()) == (False, False)


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
    reads = reads_of(turns)
    client = End(client_context(), "localhost", reads=reads)
    rota = Scheduler(turns.loop, 0.0, lambda: 0.0)
    server = End(server_context(), reads=reads, rota=rota, proven=False)
    connect(client, server)
    deliver(client, server)
    turns.turn()
    deliver(server, client)
    finished, client.wire.sent = client.wire.sent, b""
    server.tls.data_received(finished + full_record(client)[:15_000])
    turns.run()
    assert server.tls.opened.done()
    assert server.tls._incoming.pending == 0
    assert reads.waiting.of(STRANGERS) == 15_000


async def test_a_part_of_who_has_shown_a_key_is_not_counted() -> None:
    reads = reads_of(Turns())
    client, server = open_pair(reads, proven=False)
    sent = full_record(client) + full_record(client)
    server.tls.data_received(sent[:9_000])
    server.proven = True  # by the first record, say
    server.tls.data_received(sent[9_000:20_000])
    assert (len(server.app.got), reads.waiting.of(STRANGERS)) == (16_000, 0)
    assert server.tls._incoming.pending == 0
    server.tls.data_received(sent[20_000:])
    assert len(server.app.got) == 32_000


async def test_who_has_shown_a_key_meanwhile_gives_way_to_no_stranger() -> None:
    turns, reads, _, server = sent_bytewise(MANY, proven=False)
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
    turns, reads, client, server = sent_bytewise(TEXT)
    assert reads.waiting.of("tenant") > len(TEXT)  # not of its address
    reads.waiting.free(1)
    assert reads.waiting.of("tenant") == 0
    deliver(server, client)
    assert (client.app.got, client.app.ended) == (b"no room", 1)
    turns.run()
    assert (server.app.got, server.wire.paused) == (b"", False)
    assert not server.wire.aborted


async def test_who_gives_way_before_its_handshake_is_cut() -> None:
    server = End(server_context(), proven=False)
    server.tls.connection_made(server.wire)
    server.tls.give_way()
    assert (server.refused, server.wire.aborted) == (False, True)


async def test_what_is_shown_and_not_finished_counts_for_more(tmp_path: Path) -> None:
    """Hellos alone cost nobody anything."""
    reads = reads_of(Turns())
    shows = client_context(client_certificate(tmp_path, "one.example", "x" * 60 + ".example"))
    asking = server_context("localhost", "asking")
    asking.verify_mode = ssl.CERT_REQUIRED
    authority().configure_trust(asking)
    server = End(asking, reads=reads, proven=False)
    server.tls._parties = ClientHandshakes(asyncio.get_running_loop())
    server.tls._certificate = ClientCertificate(b"ours")
    server.tls._limit_bytes = SHOWN_BYTES_MAX
    client = End(shows, "localhost", reads=reads)
    connect(client, server)
    deliver(client, server)
    assert reads.waiting.of(STRANGERS) == 0
    server.tls._handshake_bytes = 5_000
    server.tls._count()
    assert reads.waiting.of(STRANGERS) == SHOWN_TIMES * (5_000 - HELLO_BYTES)
    reads.waiting.free(1)
    assert server.wire.aborted
    server.tls.connection_lost(None)
