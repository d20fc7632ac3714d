"""What is written in C reads as its twin in Python and llhttp do, or leaves it to them."""

import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httptools
import pytest

from penstock.proxy.data.answer import any_chunk_of
from penstock.proxy.errors.client import ClientError
from penstock.proxy.wire import header_fields
from penstock.proxy.wire import native as native_wire
from penstock.proxy.wire.event_ends import any_ordinary_events
from penstock.proxy.wire.long_reads import any_line_ends
from tests.unit.c_module import COMPILER, c_module

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")

NAMES = [
    *b"Host content-type Content-Length AUTHORIZATION Connection x-api-key x X-Y_Z.9".split(),
    *(b"!#$%&'*+-.^_`|~", b"n" * 64, b"n" * 65, b"Date", b"user-agent", b"", b"a b"),
]
VALUES = [
    *(b"", b"a", b"close", b" a \t b ", b"\xe9\xff", b"a:b: c", b"12"),
    *(b"\x7f", b"\x00", b"\r", b"\n"),
]
COLONS = [b": ", b": ", b": ", b":", b" : ", b":\t", b"  ", b""]


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return c_module("proxy/wire", tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="module")
def parser(native: Any) -> Any:
    return native.FieldParser(header_fields._USUAL, header_fields._DECISIVE)


def lines(rng: random.Random, odd: float) -> bytes:
    """Header lines, some of them with a name, a colon, a value or an end that is odd."""

    def one(usual: bytes, all_: list[bytes]) -> bytes:
        return rng.choice(all_) if rng.random() < odd else usual

    found = [
        one(rng.choice(NAMES[:9]), NAMES) + one(b": ", COLONS) + one(b"some value", VALUES)
        for _ in range(rng.randrange(8))
    ]
    return one(b"\r\n", [b"\r\n", b"\n", b"\r", b"\r\n\r\n"]).join(found)


def said(block: bytes) -> object:
    try:
        return header_fields.any_fields(block)
    except ClientError as error:
        return type(error)


@pytest.mark.parametrize("odd", [0.0, 0.1, 0.5])
def test_what_it_reads_is_what_python_reads(parser: Any, odd: float) -> None:
    rng = random.Random(1)
    read = left = 0
    for _ in range(20_000):
        block = lines(rng, odd)
        found = parser.parse(block)
        assert found is None or found == said(block), block
        read += found is not None
        left += found is None and isinstance(said(block), tuple)
    assert read > 500
    assert left < 12_000


def test_usual_lines_are_never_left_to_python(parser: Any) -> None:
    usual = [b"%s: value-%d" % (name.title(), at) for at, name in enumerate(header_fields._USUAL)]
    assert parser.parse(b"\r\n".join(usual)) == said(b"\r\n".join(usual))
    assert parser.parse(b"a:b") == ([(b"a", b"b")], {})


@pytest.mark.parametrize(
    "block",
    [
        *(b"", b"a", b"a b: c", b": c", b"a: b\r\n", b"a: b\nc: d", b"a: b\r\n c", b"a: \x00"),
        *(b"host: a\r\nHost: b", b"connection: a\r\nconnection: b", b"n" * 65 + b": v"),
        b"\r\n".join([b"a: b"] * 129),
    ],
)
def test_what_is_not_plainly_right_is_left_to_python(parser: Any, block: bytes) -> None:
    assert parser.parse(block) is None


def chunk(data: bytes, size: bytes = b"%x") -> bytes:
    return size % len(data) + b"\r\n" + data + b"\r\n"


class Body:
    """What llhttp makes of a read that begins between two chunks."""

    def __init__(self, read: bytes) -> None:
        self.data, self.chunks, self.fault, self.complete = b"", 0, False, False
        parser = httptools.HttpRequestParser(self)
        parser.feed_data(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        try:
            parser.feed_data(read)
        except httptools.HttpParserError:
            self.fault = True

    def on_body(self, data: bytes) -> None:
        self.data += data

    def on_chunk_complete(self) -> None:
        self.chunks += 1

    def on_message_complete(self) -> None:
        self.complete = True


def test_chunks_that_it_takes_are_those_of_llhttp(native: Any) -> None:
    rng = random.Random(2)
    taken = 0
    for _ in range(30_000):
        sizes = [rng.choice([1, 5, 16, 250, 4_000]) for _ in range(rng.randrange(1, 4))]
        spelt = rng.choice([b"%x", b"%X", b"%04x"])
        read = bytearray(b"".join([chunk(rng.randbytes(size), spelt) for size in sizes]))
        for _ in range(rng.choice([0, 0, 1, 2])):
            at = rng.randrange(len(read))
            if rng.random() < 0.5:
                read[at : at + rng.randrange(3)] = rng.choice(
                    [b"", b"\r", b"\n", b"0", b";a", b" "]
                )
            else:
                read[min(at, 5)] = rng.randrange(256)
        found = native.whole_chunks(bytes(read))
        if found is not None:
            body = Body(bytes(read))
            assert (found[0], body.fault, body.complete) == (body.data, False, False), bytes(read)
            assert found[1] == body.chunks
            taken += 1
    assert taken > 10_000


@pytest.mark.parametrize(
    "read",
    [
        *(b"", b"0\r\n\r\n", chunk(b"a") + b"0\r\n\r\n", b"1;a\r\nx\r\n", b"+1\r\nx\r\n"),
        *(b"1 \r\nx\r\n", b"1\nx\n", b"\r\nx\r\n", b"1\r\nx", b"1\r\nx\r", b"2\r\nx\r\n"),
        *(b"1\r\nxy\r\n", b"0x1\r\nx\r\n"),
        *(b"fffffffffffffff1\r\nx\r\n", b"ffffffff\r\nx\r\n", chunk(b"a") + b"5\r\nab", b"1\r\n"),
    ],
)
def test_other_reads_are_left_to_llhttp(native: Any, read: bytes) -> None:
    assert native.whole_chunks(read) is None


def test_line_ends_are_those_of_the_twin(native: Any) -> None:
    rng = random.Random(3)
    for _ in range(2_000):
        data = bytes(rng.choices(b"\r\nab\x8a\x8d", k=rng.randrange(300)))
        begin, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
        assert native.line_ends(data, begin, end) == any_line_ends(data, begin, end)


@pytest.mark.parametrize("given", [("a", 0, 1), (b"a", 0), (b"a", 0, 1, 2), (b"a", 0.5, 1)])
def test_line_ends_takes_bytes_and_two_numbers(native: Any, given: Any) -> None:
    with pytest.raises(TypeError):
        native.line_ends(*given)


def test_ordinary_events_are_those_of_the_twin(native: Any) -> None:
    rng = random.Random(4)
    ordinary = 0
    for _ in range(20_000):
        like = rng.choice([b"", b"x", b"xx", b'"y":null}', b'"y"'])
        parts = [b"data: ", b"a", b"\n", b"\n\n", b"\n\n", b"\r", like, like, like + b"\n\n"]
        read = b"".join(rng.choices(parts, [9, 9, 1, 5, 5, 0.2, 4, 4, 9], k=rng.randrange(12)))
        found = native.ordinary_events(read, like)
        assert found == any_ordinary_events(read, like), (read, like)
        ordinary += found > 0
    assert ordinary > 1_000


@pytest.mark.parametrize("size", [0, 1, 15, 16, 255, 4_096, 70_000])
def test_a_chunk_is_that_of_the_twin(native: Any, size: int) -> None:
    data = b"\r\nx" * (size // 3) + b"x" * (size % 3)
    assert native.chunk_of(data) == any_chunk_of(data)


@pytest.mark.parametrize("given", [("a", b"a"), (b"a", "a"), (b"a",), (b"a", b"a", b"a")])
def test_ordinary_events_takes_two_pieces_of_bytes(native: Any, given: Any) -> None:
    with pytest.raises(TypeError):
        native.ordinary_events(*given)


@pytest.mark.parametrize(("begin", "end"), [(-1, 1), (0, 2)])
def test_line_ends_beyond_the_data_are_an_error(native: Any, begin: int, end: int) -> None:
    with pytest.raises(ValueError, match="1 bytes"):
        native.line_ends(b"a", begin, end)


def test_wrong_arguments_are_errors(native: Any, parser: Any) -> None:
    with pytest.raises(TypeError):
        native.whole_chunks("1")
    with pytest.raises(TypeError):
        native.chunk_of("1")
    new = type(parser)
    for names, decisive in (("a", frozenset()), ((), set()), (("a",), frozenset())):
        with pytest.raises(TypeError):
            new(names, decisive)
    with pytest.raises(TypeError):
        new((b"",), frozenset())
    with pytest.raises(ValueError, match="64"):
        new(tuple(b"%d" % number for number in range(65)), frozenset())
    with pytest.raises(TypeError):
        parser.parse("a: b")


def test_header_lines_are_those_of_python(native: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_wire, "AVAILABLE", False)
    rng = random.Random(2)
    for _ in range(2_000):
        fields = [(rng.choice(NAMES), rng.choice(VALUES)) for _ in range(rng.randrange(20))]
        assert native.lines_of(fields) == header_fields.lines_of(fields)


@pytest.mark.parametrize(
    "fields", [(), [b"a: b"], [(b"a",)], [(b"a", "b")], [(b"a", b"b", b"c")], [[b"a", b"b"]], None]
)
def test_header_lines_of_anything_else_are_an_error(native: Any, fields: Any) -> None:
    with pytest.raises(TypeError):
        native.lines_of(fields)


@pytest.mark.parametrize("landing", [0.0, 0.7])
def test_a_buffer_keeps_what_is_written_and_what_lands_in_it(native: Any, landing: float) -> None:
    rng = random.Random(3)
    for length in (0, 1, 511, 262_144, 262_145, 4 * 2**20, 4 * 2**20 + 1, 9 * 2**20):
        whole = rng.randbytes(length)
        buffer, at = native.Buffer(length), 0
        while at < length:
            piece = whole[at : at + rng.choice((0, 1, 7, 65_536, 262_144))]
            if piece and rng.random() < landing:
                with memoryview(buffer) as room:
                    assert 0 < len(room) <= min(262_144, length - at)
                    piece = piece[: len(room)]
                    room[: len(piece)] = piece
                buffer.landed(len(piece))
            else:
                assert buffer.write(piece) == len(piece)
            at += len(piece)
            assert buffer.tell() == at
        assert buffer.getvalue() == whole


def test_a_buffer_has_no_room_beyond_what_was_announced(native: Any) -> None:
    buffer = native.Buffer(3)
    with memoryview(buffer) as room:
        assert len(room) == 3
        room[:2] = b"ab"
    for size in (-1, 4):
        with pytest.raises(ValueError, match="room"):
            buffer.landed(size)
    buffer.landed(2)
    with memoryview(buffer) as room:
        with pytest.raises(BufferError):
            memoryview(buffer)
        room[0] = ord("c")
    buffer.landed(1)
    last = buffer.getvalue()
    assert last == b"abc"
    for ended in (buffer, native.Buffer(0)):
        with pytest.raises(BufferError):
            memoryview(ended)
        with pytest.raises(ValueError, match="room"):
            ended.landed(0)


LOST = """
import importlib.util, resource, sys
spec = importlib.util.spec_from_file_location("_native", sys.argv[1])
native = importlib.util.module_from_spec(spec)
spec.loader.exec_module(native)
buffer = native.Buffer(2**30)
first = bytes(2**22)
buffer.write(first)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**20, -1))
for _ in range(2):
    for step in (lambda: buffer.write(b"x"), lambda: memoryview(buffer)):
        try:
            step()
        except MemoryError:
            print("no memory")
"""


def test_a_buffer_that_found_no_memory_takes_nothing_any_more(native: Any) -> None:
    """What came before is lost. A body must not go on without it."""
    command = [sys.executable, "-c", LOST, native.__file__]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.splitlines() == ["no memory"] * 4


def test_a_view_outlives_its_buffer(native: Any) -> None:
    buffer = native.Buffer(3)
    room = memoryview(buffer)
    del buffer
    room[:] = b"abc"
    assert bytes(room) == b"abc"


def test_a_buffer_refuses_what_it_cannot_keep(native: Any) -> None:
    with pytest.raises(ValueError, match="negative"):
        native.Buffer(-1)
    buffer = native.Buffer(3)
    with pytest.raises(ValueError, match="not whole"):
        buffer.getvalue()
    with pytest.raises(ValueError, match="announced"):
        buffer.write(b"abcd")
    with pytest.raises(TypeError):
        buffer.write(bytearray(b"abc"))
    buffer.write(b"ab")
    with pytest.raises(ValueError, match="announced"):
        buffer.write(b"cd")
    buffer.write(b"c")
    assert buffer.getvalue() == b"abc"
    assert buffer.getvalue() == b""  # it is not kept
    with pytest.raises(ValueError, match="announced"):
        buffer.write(b"a")


def test_what_was_announced_and_not_sent_takes_no_memory(native: Any) -> None:
    def resident_kib() -> int:
        status = Path("/proc/self/status").read_text()
        return int(re.findall(r"VmRSS:\s+([0-9]+)", status)[0])

    before = resident_kib()
    buffers = [native.Buffer(32 * 2**20) for _ in range(200)]
    for buffer in buffers:
        buffer.write(b"{")
    assert resident_kib() - before < 200 * 64
