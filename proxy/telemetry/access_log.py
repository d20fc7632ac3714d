"""One line for each request, as JSON or as text. It never holds a prompt or a key.

Lines are collected on the loop, formatted and joined every tenth of a second, or when there are
many, and written by a thread. Lines that the reader does not take in time are dropped and counted.
"""

import asyncio
from typing import Final

import orjson

from penstock.proxy.telemetry.access_line import text_of
from penstock.proxy.telemetry.log_lines import CLOSE_S, LogWriter
from penstock.proxy.telemetry.metrics import Metrics

FLUSH_S: Final = 0.1
# Lines that wait for the next flush, and batches that wait for the thread: about 10 MB together.
# Making so many lines JSON takes half a millisecond.
LINES_MAX: Final = 256
BATCHES_MAX: Final = 128
_OPTIONS: Final = orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z


class AccessLog:
    """Writes access lines to a file descriptor (stdout)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, metrics: Metrics, fd: int) -> None:
        self._loop = loop
        self._metrics = metrics
        self.as_text = False  # for people: `log.format`
        self._lines: list[dict[str, object]] = []
        self._due = False  # the loop will flush them
        self._writer = LogWriter(fd, BATCHES_MAX, "access-log")

    def write(self, fields: dict[str, object]) -> None:
        """Take one line; it is written within FLUSH_S."""
        if not self._due:
            self._due = True
            self._loop.call_later(FLUSH_S, self._flush_due)
        self._lines.append(fields)
        if len(self._lines) >= LINES_MAX:
            self._flush()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Write what is left; give up after `timeout_s` if nobody reads."""
        self._flush()
        self._writer.close(timeout_s)

    def _flush_due(self) -> None:
        self._due = False
        self._flush()

    def _flush(self) -> None:
        if not self._lines:
            return
        lines, self._lines = self._lines, []
        if not self._writer.write(b"".join(map(self._formatted, lines))):
            self._metrics.access_lines_dropped += len(lines)

    def _formatted(self, line: dict[str, object]) -> bytes:
        try:
            if self.as_text:
                return text_of(line)
            return orjson.dumps(line, option=_OPTIONS)
        except (TypeError, LookupError):  # a fault of ours must not take the other lines with it
            self._metrics.access_lines_dropped += 1
            return b""
