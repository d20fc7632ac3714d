"""What the benchmarks' client makes of an answer's bytes, and what they read in /metrics."""

import asyncio

import pytest

from penstock.bench.client import ClientConnection, Clients, address, samples
from penstock.bench.report import BenchError

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n"
CHUNK = b"5\r\nriver\r\n"
END = b"0\r\n\r\n"


class Transport(asyncio.Transport):
    """A transport that goes nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.aborted = False

    def write(self, data: object) -> None:
        self.written += bytes(data)  # type: ignore[call-overload]

    def abort(self) -> None:
        self.aborted = True


def connected() -> tuple[ClientConnection, Transport]:
    connection, transport = ClientConnection(), Transport()
    connection.connection_made(transport)
    connection.send(b"GET / HTTP/1.1\r\n\r\n")
    return connection, transport


async def test_an_answer_tells_when_its_parts_came() -> None:
    connection, _ = connected()
    for data in (HEAD + b"\r\n", CHUNK, CHUNK + CHUNK, END):
        connection.data_received(data)
    assert bytes(connection.answer.body) == b"river" * 3
    assert [size for _, size in connection.answer.reads] == [5, 15]
    assert connection.answer.ended


@pytest.mark.parametrize(
    ("data", "again"),
    [
        (HEAD + b"\r\n" + CHUNK + END, True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nriver", True),
        (HEAD + b"connection: close\r\n\r\n" + CHUNK + END, False),
        (HEAD + b"\r\n" + CHUNK, False),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nriver", False),
        (b"no HTTP at all\r\n", False),
    ],
)
async def test_a_connection_is_kept_after_a_whole_answer(data: bytes, again: bool) -> None:
    connection, transport = connected()
    connection.data_received(data)
    assert connection.reusable is again
    clients = Clients(1)
    clients.give(connection)
    assert transport.aborted is not again
    if again:
        assert await clients.take() is connection


async def test_an_answer_that_is_cut_has_not_ended() -> None:
    connection, _ = connected()
    connection.data_received(HEAD + b"\r\n" + CHUNK)
    connection.connection_lost(None)
    await connection.ended()
    assert not connection.answer.ended
    assert not connection.open


def test_every_sample_has_its_labels_in_its_name() -> None:
    text = b'# HELP a words\na{b="c d"} 2.0\nn 1e3\n'
    assert samples(text) == {'a{b="c d"}': 2.0, "n": 1000.0}


def test_a_server_is_told_by_its_url() -> None:
    assert address("http://10.0.0.1:8000") == (8000, "10.0.0.1")
    for url in ("https://10.0.0.1", "10.0.0.1:8000"):
        with pytest.raises(BenchError, match="not a URL"):
            address(url)
