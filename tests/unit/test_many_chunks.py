"""A read of many small chunks is taken by turns, and the client is not read meanwhile."""

from collections.abc import Callable

from proxy.many_chunks import LINE_ENDS_MAX, SLICE_BYTES, ManyChunks, sliced
from proxy.rota import Rota
from tests.unit.transport import Transport

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

    def __init__(self) -> None:
        self.taken: list[bytes] = []

    def receive(self, data: bytes, /) -> None:
        self.taken.append(data)


class Wire(Transport):
    reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.closed
        self.reading = True


def test_only_a_read_of_very_many_is() -> None:
    rota = Rota(Turns())  # type: ignore[arg-type]
    for data, many in (
        (CHUNK * (LINE_ENDS_MAX // 2), False),
        (CHUNK * (LINE_ENDS_MAX // 2 + 1), True),
        (b"\r\n" * (SLICE_BYTES // 2), False),  # a slice never
    ):
        client, wire = Client(), Wire()
        assert sliced(client, wire, rota, data) is many
        assert wire.reading is not many
        assert not client.taken


def test_a_read_of_nothing_but_line_ends_is_taken_once() -> None:
    """Each slice has more of them than a read may have."""
    turns, client, wire = Turns(), Client(), Wire()
    assert sliced(client, wire, Rota(turns), b"\n" * 4 * SLICE_BYTES)  # type: ignore[arg-type]
    turns.run(turns_max=10)
    assert not turns.to_come
    assert client.taken == [b"\n" * SLICE_BYTES] * 4
    assert wire.reading


def test_all_of_it_in_its_order_and_then_the_client_is_read_again() -> None:
    data = b"".join(b"1\r\n%c\r\n" % (97 + number % 26) for number in range(10_000))
    client, taken = Wire(), list[bytes]()
    chunks = ManyChunks(data, taken.append, client)
    while chunks.step():
        assert not client.reading
    assert client.reading
    assert b"".join(taken) == data
    assert max(map(len, taken)) <= SLICE_BYTES


def test_nothing_more_once_the_connection_closes() -> None:
    client, taken = Wire(), list[bytes]()
    chunks = ManyChunks(CHUNK * 10_000, taken.append, client)
    assert chunks.step()
    client.abort()
    assert not chunks.step()
    assert len(taken) == 1
    chunks = ManyChunks(CHUNK, lambda data: client.close(), Wire())
    assert not chunks.step()
