"""Log lines: one each, printable, bounded, without what an exception quotes."""

import asyncio
import contextlib
import logging
import os
import ssl
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from penstock.proxy.telemetry.log_lines import (
    LINE_CHARS_MAX,
    WAITING_MAX,
    JsonFormatter,
    LineFormatter,
    Log,
    lines_dropped,
    log_of_loop,
    printable,
)

SECRET = "sk-canary"


def formatted(message: str, *args: object, error: BaseException | None = None) -> str:
    info = (type(error), error, error.__traceback__) if error is not None else None
    return LineFormatter().format(record(message, *args, info=info))


def record(message: str, *args: object, info: Any = None) -> logging.LogRecord:
    return logging.LogRecord("penstock.proxy.app", logging.WARNING, "x.py", 1, message, args, info)


@pytest.mark.parametrize(
    "text",
    [
        "a\r\n1.0 INFO penstock forged",
        "a\x1b[2J\x1b]0;title\x07",
        "a\0b",
        "a\x9b31mb",
        "a\u2028b\u2029c\u0085d",
        "a\u202eb\ud800",
        "\x7f\x0b\x0c",
    ],
)
def test_a_line_stays_one_printable_line(text: str) -> None:
    line = formatted("ejected name=%s", text)
    assert line.isprintable()
    assert len(line.splitlines()) == 1
    line.encode()


def test_a_record_may_be_one_json_object() -> None:
    line = record("a=%s", "b")
    line.created = 1_795_405_855.579
    told = orjson.loads(JsonFormatter().format(line))
    assert told.pop("pid") == os.getpid()
    assert told == {
        "at": "2026-11-23T03:50:55.579Z",
        "name": "proxy.app",
        "level": "WARNING",
        "message": "a=b",
    }
    error = raised()
    line.exc_info = (type(error), error, error.__traceback__)
    text = JsonFormatter().format(line)
    assert len(text.splitlines()) == 1
    assert SECRET not in text
    assert "ValueError" in orjson.loads(text)["exception"]
    beginning = f"2026-11-23T03:50:55.579Z WARNING {os.getpid()} proxy.app a=b"
    assert LineFormatter(pid=True).format(line).startswith(beginning)


def test_a_long_line_is_cut() -> None:
    assert len(formatted("x=%s", "y" * 1_000_000)) <= LINE_CHARS_MAX + 3
    assert printable("short") == "short"


def raised() -> BaseException:
    try:
        try:
            raise KeyError(SECRET)
        except KeyError as error:
            raise ValueError(f"{SECRET}\n1.0 INFO forged") from error
    except ValueError as error:
        return error


def test_an_exception_is_told_by_type_and_place_alone() -> None:
    text = formatted("request failed", error=raised())
    assert SECRET not in text
    assert "forged" not in text.replace('forged")', "")  # the source line itself is ours
    assert "ValueError\nwhile this was handled:\nTraceback" in text
    assert text.endswith("KeyError")
    assert f"in {raised.__name__}" in text


def test_what_the_system_said_is_told() -> None:
    assert formatted("x", error=OSError(24, "Too many open files")).endswith(
        "OSError: Too many open files"
    )


def test_the_loops_report_quotes_no_argument(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()
    context = {"message": f"Exception in callback f(b'{SECRET}')", "exception": raised()}
    log_of_loop(loop, context)
    loop.close()
    (told,) = caplog.records
    told.exc_text = None  # what pytest's own formatter made of it
    assert told.getMessage() == "loop: Exception in callback f"
    assert SECRET not in LineFormatter().format(told)


@pytest.mark.parametrize(
    ("error", "told"),
    [(ssl.SSLError(), False), (ConnectionResetError(), False), (ValueError(SECRET), True)],
)
def test_a_connection_given_up_while_it_failed_is_no_error(
    caplog: pytest.LogCaptureFixture, error: Exception, *, told: bool
) -> None:
    loop = asyncio.new_event_loop()
    with caplog.at_level(logging.DEBUG, "penstock.proxy.telemetry.log_lines"):
        log_of_loop(loop, {"message": "Future exception was never retrieved", "exception": error})
        log_of_loop(loop, {"message": "Exception in callback f()", "exception": error})
    loop.close()
    levels = [each.levelno for each in caplog.records]
    assert levels == [logging.ERROR if told else logging.DEBUG, logging.ERROR]


@pytest.fixture
def full_pipe() -> Iterator[tuple[int, int]]:
    """Both ends of a pipe that takes nothing more until somebody reads."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writes, b"\n")
    os.set_blocking(writes, True)
    yield reads, writes
    os.close(reads)
    os.close(writes)


def read_until(reads: int, text: bytes) -> bytes:
    seen = b""
    while text not in seen:
        seen += os.read(reads, 65_536)
    return seen


def test_a_reader_that_does_not_read_blocks_nobody_and_lost_lines_are_told(
    full_pipe: tuple[int, int],
) -> None:
    reads, writes = full_pipe
    log = Log(writes)
    logging.getLogger().addHandler(log)
    try:
        before = lines_dropped()
        for number in range(WAITING_MAX + 10):
            log.handle(record("number=%d", number))
        # The thread holds one line, or has not begun.
        assert lines_dropped() - before in (9, 10)
        dropped = lines_dropped() - before
        read_until(reads, b"number=%d\n" % (WAITING_MAX + 9 - dropped))
        log.handle(record("number=%d", 7_000))
        log.handle(record("number=%d", 7_001))
        told = read_until(reads, b"number=7001\n").splitlines()
    finally:
        logging.getLogger().removeHandler(log)
        log.close()
    assert told[0].endswith(b"nobody read stderr: lines=%d" % dropped)
    assert [line.split()[-1] for line in told[1:]] == [b"number=7000", b"number=7001"]


def test_all_that_waits_is_written_before_the_end(full_pipe: tuple[int, int]) -> None:
    _, filled = full_pipe
    reads, writes = os.pipe()
    log = Log(writes)
    for number in range(20):
        log.handle(record("number=%d", number))
    log.handle(record("odd=%d", "x"))
    log.close(10.0)
    lines = os.read(reads, 65_536).splitlines()
    assert len(lines) == 21
    assert lines[-1].endswith(b"odd=%d")
    for end in (reads, writes):
        os.close(end)
    stuck = Log(filled)
    stuck.handle(record("number=%d", 1))
    stuck.close(0.01)  # gives up
