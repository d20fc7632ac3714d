"""Log lines that nobody outside can forge and that hold no secret.

Each record stays on one line, in printable characters, with a limited length. An
exception is logged by its type and the place where it was raised. Its text is left out,
because it may quote a client. The same holds for reports of the loop, which may quote
the arguments of a callback.
"""

import asyncio
import logging
import os
import ssl
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Final

import orjson

LINE_CHARS_MAX: Final = 2_048
# How long an end of the process waits for the reader.
CLOSE_S: Final = 1.0


def printable(text: str) -> str:
    """The text on one line, shortened, with all characters escaped that are not printable."""
    if len(text) > LINE_CHARS_MAX:
        text = text[:LINE_CHARS_MAX] + "..."
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


class LogWriter:
    """Writes to one file descriptor."""

    def __init__(self, fd: int, waiting_max: int, name: str) -> None:
        """`waiting_max`: how many texts may wait. `name`: of the thread."""
        self._fd = fd
        self._waiting_max = waiting_max
        # A fault that the garbage collector meets is logged from anywhere, this queue's own code
        # included. No other queue allows that.
        self._waiting: SimpleQueue[bytes | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write_all, name=name, daemon=True)
        self._thread.start()

    def write(self, text: bytes) -> bool:
        """Have whole lines written soon. False: too many wait, and these are lost."""
        if self._waiting.qsize() >= self._waiting_max:
            return False
        self._waiting.put(text)
        return True

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Write what waits; give up after `timeout_s` if nobody reads."""
        self._waiting.put(None)
        self._thread.join(timeout_s)

    def _write_all(self) -> None:
        while (text := self._waiting.get()) is not None:
            try:
                while text:
                    text = text[os.write(self._fd, text) :]
            except OSError:
                continue  # nobody reads any more; keep emptying the queue, so that close() returns


logger = logging.getLogger(__name__)

# UTC, as `at` in the access log: no time zone to guess.
FORMAT: Final = "%(at)s %(levelname)s %(name)s %(message)s"
# At most this many exceptions of one chain are logged.
CAUSES_MAX: Final = 4
# Records that wait for the reader of stderr, and the most that is written of one: 16 MiB together.
WAITING_MAX: Final = 1_024
RECORD_BYTES_MAX: Final = 16_384
_CONNECTION_ENDS: Final = (ssl.SSLError, ConnectionError)

_Raised = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class LineFormatter(logging.Formatter):
    """Formats a record as one printable line. The frames of an exception follow below it.

    `pid`: the process is told, too. Two of one supervisor write to one stderr.
    """

    def __init__(self, *, pid: bool = False) -> None:
        super().__init__()
        self._form = FORMAT.replace("%(name)s", "%(process)d %(name)s") if pid else FORMAT

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return printable(self._form % {**vars(record), **_told(record)})

    def formatException(self, ei: _Raised) -> str:  # noqa: N802 - logging's name
        lines: list[str] = []
        error = ei[1]
        for _ in range(CAUSES_MAX):
            if error is None:
                break
            frames = "".join(traceback.format_tb(error.__traceback__))
            lines.append(f"Traceback (most recent call last):\n{frames}{_named(error)}")
            error = error.__cause__ or error.__context__
        return "\nwhile this was handled:\n".join(lines)


class JsonFormatter(LineFormatter):
    """Formats a record, with the frames of an exception, as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        told = {**_told(record), "level": record.levelname, "pid": record.process}
        told["message"] = printable(record.getMessage())
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(told).decode()


def _told(record: logging.LogRecord) -> dict[str, object]:
    """When and where it was logged. Every name would begin with `penstock.`"""
    at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    return {"at": at.replace("+00:00", "Z"), "name": record.name.removeprefix("penstock.")}


class Log(logging.Handler):
    """Has records written to a file descriptor. Those that find no place are counted and told."""

    def __init__(self, fd: int, formatter: logging.Formatter | None = None) -> None:
        super().__init__()
        self.setFormatter(formatter or LineFormatter())
        self._writer = LogWriter(fd, WAITING_MAX, "log")
        self.dropped = 0
        self._untold = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Take one record. The caller holds the handler's lock."""
        untold = self._untold
        if untold:
            told = "log lines were dropped, nobody read stderr: lines=%d"
            lost = logging.LogRecord(__name__, logging.WARNING, "", 0, told, (untold,), None)
            self._untold -= untold if self._write(lost) else 0
        if not self._write(record):
            self.dropped += 1
            self._untold += 1

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Write what waits; give up after `timeout_s` if nobody reads."""
        super().close()
        self._writer.close(timeout_s)

    def _write(self, record: logging.LogRecord) -> bool:
        try:
            text = self.format(record)
        except (TypeError, ValueError, LookupError):  # a fault of ours must not end what logs it
            record.args = None
            text = self.format(record)
        written = text.encode("utf-8", "backslashreplace")[:RECORD_BYTES_MAX]
        return self._writer.write(written + b"\n")


@contextmanager
def log_to_stderr(level: str, form: str = "text", *, pid: bool = False) -> Iterator[None]:
    """Log to stderr, warnings and exceptions of threads too. stdout is for the access log.

    `form`: `text` or `json`. `pid`: a line of text has the process, as JSON always has.
    """
    # Python has none where it was closed before (`2>&-`): its number may be a connection's by now.
    fd = sys.stderr.fileno() if sys.stderr else os.open(os.devnull, os.O_WRONLY)
    log = Log(fd, JsonFormatter() if form == "json" else LineFormatter(pid=pid))
    logging.basicConfig(level=level.upper(), handlers=[log])
    logging.captureWarnings(capture=True)
    threading.excepthook = _thread_failed
    sys.unraisablehook = _unraisable
    try:
        yield
    finally:
        log.close()


def lines_dropped() -> int:
    """How many records found no place since the process began."""
    return sum(each.dropped for each in logging.getLogger().handlers if isinstance(each, Log))


def log_of_loop(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an exception that no other code has caught. The loop calls it."""
    message = str(context.get("message", "")).partition("(")[0]  # arguments come after it
    error = context.get("exception")
    if message.startswith("Future exception") and isinstance(error, _CONNECTION_ENDS):
        # uvloop keeps the end of a connection in a future that nobody reads any more.
        logger.debug("loop: a connection that nobody waits for ended: %s", _named(error))
        return
    logger.error("loop: %s", message, exc_info=error)


def _named(error: BaseException) -> str:
    """The exception's type, and the system's own text for an OSError. Neither quotes a client."""
    kind = type(error).__qualname__
    reason = error.strerror if isinstance(error, OSError) else None
    return printable(f"{kind}: {reason}" if isinstance(reason, str) else kind)


def _thread_failed(args: threading.ExceptHookArgs) -> None:
    logger.error("thread failed", exc_info=args.exc_value)


def _unraisable(args: "sys.UnraisableHookArgs") -> None:
    logger.error("exception ignored", exc_info=args.exc_value)
