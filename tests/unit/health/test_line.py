"""One connection of probes: whole answers in any framing and split, and what is none."""

import asyncio
import gc
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Final

import pytest

from penstock.health.line import HEAD_BYTES_MAX, PIECES_MAX, Answer, Line, Overlong, Unheard
from tests.unit.proxy.wire.transport import Transport

ASKED: Final = b"GET /health HTTP/1.1\r\n\r\n"
LENGTH: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED: Final = (
    b"HTTP/1.1 503 No\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
)
HINTS: Final = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
TO_THE_END: Final = b"HTTP/1.0 200 OK\r\n\r\nhello"


def connected() -> tuple[Line, Transport]:
    line, transport = Line(), Transport()
    line.connection_made(transport)
    return line, transport


async def asked(line: Line, limit_bytes: int = 100) -> asyncio.Task[Answer]:
    task = asyncio.create_task(line.ask(ASKED, limit_bytes))
    await asyncio.sleep(0)
    return task


async def test_a_refused_certificate_is_told() -> None:
    """With TLS 1.3 a backend refuses it after the handshake."""
    line, _ = connected()
    task = await asked(line)
    line.connection_lost(ssl.SSLError(1, "certificate required"))
    with pytest.raises(ssl.SSLError):
        await task


async def test_what_was_answered_is_let_go_with_its_line() -> None:
    """Without the collector, which runs once in a long while."""
    gc.collect()
    gc.disable()
    try:
        line, transport = connected()
        task = await asked(line)
        line.data_received(LENGTH)
        assert (await task).status == 200
        line.close()
        line.connection_lost(None)
        del line, transport, task
        assert not [each for each in gc.get_objects() if isinstance(each, Line)]
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("raw", "status", "keeps"),
    [
        (LENGTH, 200, True),
        (CHUNKED, 503, True),
        (HINTS + LENGTH, 200, True),
        (b"HTTP/1.1 204 None\r\n\r\n", 204, True),
        (LENGTH.replace(b"200 OK", b"401 No\r\nConnection: close"), 401, False),
        (LENGTH.replace(b"1.1", b"1.0"), 200, False),
    ],
)
async def test_an_answer_is_read_in_any_split(raw: bytes, status: int, keeps: bool) -> None:
    for cut in range(len(raw)):
        line, transport = connected()
        task = await asked(line)
        assert transport.sent == ASKED
        line.data_received(raw[:cut]) if cut else None
        line.data_received(raw[cut:])
        assert await task == Answer(status, b"" if status == 204 else b"hello")
        assert line.open is keeps


async def test_the_next_question_has_its_own_answer() -> None:
    line, transport = connected()
    for raw in (LENGTH, CHUNKED, LENGTH):
        task = await asked(line)
        line.data_received(raw)
        assert (await task).body == b"hello"
    assert transport.sent == 3 * ASKED
    assert not transport.closed


async def test_a_line_ends_without_waiting_for_what_is_unsent() -> None:
    """A backend that takes nothing would keep a descriptor for each probe."""
    line, transport = connected()
    task = await asked(line)
    line.data_received(LENGTH)
    assert (await task).status == 200
    line.close()
    assert transport.aborted
    assert not line.open


async def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    line, _ = connected()
    task = await asked(line)
    line.data_received(TO_THE_END)
    assert not task.done()
    line.eof_received()
    assert await task == Answer(200, b"hello")
    assert not line.open


@pytest.mark.parametrize("raw", [b"", LENGTH[:-1], CHUNKED[:-1], b"HTTP/1.1 200 OK\r\n", HINTS])
@pytest.mark.parametrize("fin", [True, False])
async def test_an_answer_that_is_cut_is_none(raw: bytes, fin: bool) -> None:
    line, _ = connected()
    task = await asked(line)
    line.data_received(raw) if raw else None
    line.eof_received() if fin else line.connection_lost(ConnectionResetError())
    with pytest.raises(Unheard):
        await task
    assert line.heard is bool(raw)
    assert not line.open


async def test_an_answer_without_a_length_that_is_reset_is_none() -> None:
    line, _ = connected()
    task = await asked(line)
    line.data_received(TO_THE_END)
    line.connection_lost(ConnectionResetError())
    with pytest.raises(Unheard):
        await task


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * HEAD_BYTES_MAX,
        CHUNKED[:-5].replace(b"\r\nhe", b";" + b"x" * 70_000 + b"\r\nhe"),
    ],
)
async def test_what_is_no_answer_or_has_no_end_is_given_up(raw: bytes) -> None:
    line, transport = connected()
    task = await asked(line)
    line.data_received(raw)
    with pytest.raises(Unheard):
        await task
    assert transport.aborted


async def test_a_body_is_taken_up_to_its_limit() -> None:
    line, transport = connected()
    task = await asked(line, limit_bytes=3)
    line.data_received(LENGTH)
    assert await task == Answer(200, b"hel", whole=False)
    line, transport = connected()
    task = await asked(line, limit_bytes=3)
    line.data_received(LENGTH[:-1])
    assert await task == Answer(200, b"hel", whole=False)
    assert transport.aborted


async def test_whoever_gives_up_hears_no_late_answer() -> None:
    line, transport = connected()
    task = await asked(line)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert transport.aborted
    assert not line.open


async def test_what_nobody_asked_for_ends_the_connection() -> None:
    line, transport = connected()
    line.data_received(LENGTH)
    assert transport.aborted
    line, transport = connected()
    task = await asked(line)
    line.data_received(LENGTH + LENGTH)
    assert (await task).body == b"hello"
    assert not line.open


MIB: Final = 1_048_576
CHUNKED_HEAD: Final = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
HEAD: Final = b"HTTP/1.1 200 OK\r\n"
# How each begins, and what follows again and again.
ENDLESS: Final = {
    "interim answers": (b"", b"HTTP/1.1 100 C\r\n\r\n"),
    "lines of a head": (HEAD, b"a:b\r\n"),
    "one line of a head": (HEAD + b"a:", b"b"),
    "chunks": (CHUNKED_HEAD, b"1\r\nx\r\n"),
    "one extension of a chunk": (CHUNKED_HEAD + b"1;", b"e"),
    "extensions of chunks": (CHUNKED_HEAD, b"1;e=f\r\nx\r\n"),
    "trailers": (CHUNKED_HEAD + b"0\r\n", b"a:b\r\n"),
}


@pytest.mark.parametrize("read_bytes", [262_144, 1_000])
@pytest.mark.parametrize("kind", ENDLESS)
async def test_what_has_no_end_is_given_up_within_some_calls_of_the_parser(
    kind: str, read_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Counter[str]()
    for name in ("on_message_begin", "on_header", "on_body", "on_message_complete"):
        monkeypatch.setattr(Line, name, _counted(getattr(Line, name), name, calls))
    begin, again = ENDLESS[kind]
    flood = begin + again * (4 * MIB // len(again))
    line, transport = connected()
    task = await asked(line, MIB)
    read = 0
    while not transport.aborted:
        line.data_received(flood[read : read + read_bytes])
        read += read_bytes
    with pytest.raises(Overlong):
        await task
    assert read <= 2 * MIB + 2 * 262_144
    assert calls.total() <= PIECES_MAX + 10


def _counted(method: Callable[..., None], name: str, calls: Counter[str]) -> Callable[..., None]:
    def call(*arguments: object) -> None:
        calls[name] += 1
        method(*arguments)

    return call


async def test_a_flood_behind_an_answer_is_not_read() -> None:
    line, transport = connected()
    task = await asked(line)
    line.data_received(LENGTH + LENGTH * 5_000)
    assert await task == Answer(200, b"hello")
    assert transport.aborted
