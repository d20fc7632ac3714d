"""A read of many small chunks is taken by turns, and the client is not read meanwhile."""

from collections.abc import Callable

from penstock.proxy.data.many_chunks import (
    FEW_LINE_ENDS,
    LINE_ENDS_MAX,
    SLICE_BYTES,
    ChunkReads,
    ManyChunks,
)
from penstock.proxy.wire.rota import Rota
from penstock.proxy.wire.waiting import Waiting
from tests.unit.proxy.wire.transport import Transport

CHUNK = b"1\r\nx\r\n"


class Turns:
    def __init__(self) -> None:
        self.to_come: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.to_come.append(call)

    def run(self, turns_max: int) -> None:
        for _ in range(turns_max):
            if self.to_come:
                self.to_come.pop()()


class Client:
    holder = "a"
    gone = False

    def __init__(self) -> None:
        self.taken: list[bytes] = []

    def give_way(self) -> None:
        self.gone = True

    def receive(self, data: bytes, /) -> None:
        self.taken.append(data)


class Wire(Transport):
    reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.closed
        self.reading = True


def reads_of(turns: Turns, waiting: Waiting | None = None) -> ChunkReads:
    return ChunkReads(turns, Rota(turns), waiting or Waiting())  # type: ignore[arg-type]


def test_only_a_read_of_very_many_is() -> None:
    for data, many in (
        (CHUNK * (LINE_ENDS_MAX // 2), False),
        (CHUNK * (LINE_ENDS_MAX // 2 + 1), True),
        (b"\r\n" * (SLICE_BYTES // 2), False),  # a slice never
    ):
        client, wire = Client(), Wire()
        assert reads_of(Turns()).sliced(client, wire, data) is many
        assert wire.reading is not many
        assert not client.taken


def test_so_many_of_all_clients_are_taken_at_once_in_a_turn_and_the_rest_by_turns() -> None:
    turns = Turns()
    reads = reads_of(turns)
    data = CHUNK * 1_000
    senders = [(Client(), Wire()) for _ in range(300)]
    at_once = [sender for sender in senders if not reads.sliced(*sender, data)]
    assert len(at_once) * len(data) // len(CHUNK) * 2 <= LINE_ENDS_MAX
    # Who sends a few chunks does not wait for them.
    for _ in range(300):
        assert not reads.sliced(Client(), Wire(), CHUNK * (FEW_LINE_ENDS // 2))
    before = 0
    while turns.to_come:
        turns.run(turns_max=1)
        taken = sum(len(piece) for client, _ in senders for piece in client.taken)
        assert taken - before <= SLICE_BYTES
        before = taken
    for client, wire in senders:
        assert wire.reading
        assert client.taken or (client, wire) in at_once
    assert not reads.sliced(Client(), Wire(), data)  # there is room again


def test_a_read_of_nothing_but_line_ends_is_taken_once() -> None:
    """Each slice has more of them than a read may have."""
    turns, client, wire = Turns(), Client(), Wire()
    assert reads_of(turns).sliced(client, wire, b"\n" * 4 * SLICE_BYTES)
    turns.run(turns_max=10)
    assert not turns.to_come
    assert client.taken == [b"\n" * SLICE_BYTES] * 4
    assert wire.reading


def test_all_of_it_in_its_order_and_then_the_client_is_read_again() -> None:
    data = b"".join(b"1\r\n%c\r\n" % (97 + number % 26) for number in range(10_000))
    wire, client = Wire(), Client()
    chunks = ManyChunks(data, client, wire, Waiting())
    while chunks.step():
        assert not wire.reading
    assert wire.reading
    assert b"".join(client.taken) == data
    assert max(map(len, client.taken)) <= SLICE_BYTES


def test_nothing_more_once_the_connection_closes() -> None:
    wire, client = Wire(), Client()
    chunks = ManyChunks(CHUNK * 10_000, client, wire, Waiting())
    assert chunks.step()
    wire.abort()
    assert not chunks.step()
    assert len(client.taken) == 1


def test_where_memory_is_short_who_holds_most_of_what_waits_gives_way() -> None:
    waiting, wire = Waiting(), Wire()
    reads = reads_of(Turns(), waiting)
    few, many = Client(), [Client() for _ in range(3)]
    few.holder = "b"
    for client in (*many, few):
        assert reads.sliced(client, wire, CHUNK * 10_000)
    waiting.clear()
    assert [each.gone for each in (*many, few)] == [True, True, True, False]
    waiting.clear()
    assert few.gone


def test_what_was_taken_waits_no_more() -> None:
    turns, client, wire, waiting = Turns(), Client(), Wire(), Waiting()
    reads = reads_of(turns, waiting)
    assert reads.sliced(client, wire, CHUNK * 10_000)
    turns.run(1_000)
    assert wire.reading
    waiting.clear()
    assert not client.gone
