"""One line for each request, as JSON or as text. It never holds a prompt or a key.

A full pipe must not stop the proxy. So lines are collected on the loop, formatted and joined every
tenth of a second, or when there are many, and written by a thread. Lines that the reader does not
take in time are dropped and counted.
"""

import asyncio
import os
import queue
import threading
from typing import Final

import orjson

from penstock.proxy.telemetry.access_text import text_of
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
        self._fd = fd
        self.as_text = False  # for people: `log.format`
        self._lines: list[dict[str, object]] = []
        self._due = False  # the loop will flush them
        self._batches: queue.Queue[bytes | None] = queue.Queue(BATCHES_MAX)
        self._writer = threading.Thread(target=self._write_all, name="access-log", daemon=True)
        self._writer.start()

    def write(self, fields: dict[str, object]) -> None:
        """Take one line; it is written within FLUSH_S."""
        if not self._due:
            self._due = True
            self._loop.call_later(FLUSH_S, self._flush_due)
        self._lines.append(fields)
        if len(self._lines) >= LINES_MAX:
            self._flush()

    def close(self, timeout_s: float = 1.0) -> None:
        """Write what is left; give up after `timeout_s` if nobody reads."""
        self._flush()
        try:
            self._batches.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._writer.join(timeout_s)

    def _flush_due(self) -> None:
        self._due = False
        self._flush()

    def _flush(self) -> None:
        if not self._lines:
            return
        lines, self._lines = self._lines, []
        batch = b"".join(map(self._formatted, lines))
        try:
            self._batches.put_nowait(batch)
        except queue.Full:
            self._metrics.access_lines_dropped += len(lines)

    def _formatted(self, line: dict[str, object]) -> bytes:
        try:
            if self.as_text:
                return text_of(line)
            return orjson.dumps(line, option=_OPTIONS)
        except (TypeError, LookupError):  # a fault of ours must not take the other lines with it
            self._metrics.access_lines_dropped += 1
            return b""

    def _write_all(self) -> None:
        while (batch := self._batches.get()) is not None:
            try:
                while batch:
                    batch = batch[os.write(self._fd, batch) :]
            except OSError:
                continue  # nobody reads any more; keep emptying the queue, so that close() returns
