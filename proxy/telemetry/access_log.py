"""One line for each request, as JSON or as text. It never holds a prompt or a key.

A client's text is left out, except for its request id.

Lines are collected on the loop, formatted and joined every tenth of a second, or when there are
many, and written by a thread. Lines that the reader does not take in time are dropped and counted.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import orjson

from penstock.proxy.telemetry.log_lines import CLOSE_S, LogWriter, printable
from penstock.proxy.telemetry.metrics import Metrics
from penstock.proxy.telemetry.record import Record

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


# The methods that are told. Any other method is text of the client, and is left out.
METHODS: Final = {
    method.encode(): method
    for method in ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT")
}


def add_request(
    line: dict[str, object], record: Record, model: str | None, *, stream: bool
) -> None:
    """Add the fields of a request that has an exchange.

    They are the outcome, who served it, when what happened, and the tokens.
    `model`: its name if a backend lists it. Any other name is a client's text. `stream`: what the
    client asked for.
    """
    usage = record.usage
    line["error"] = record.error
    line["whole"] = record.whole
    line["model"] = printable(model) if model is not None else None
    if record.route:
        line["route"] = record.route
    if record.fell_back:
        line["fell_back"] = record.fell_back
    line["pool"] = record.pool or None
    line["backend"] = record.backend or None
    line["reason"] = record.reason or None
    line["class"] = record.service_class or None
    line["attempts"] = record.attempts
    line["stream"] = stream
    line["duration_ms"] = record.ms(record.ended_s)
    line["accepted_ms"] = record.ms(record.accepted_s)
    line["received_ms"] = record.ms(record.received_s)
    line["read_ms"] = record.ms(record.read_s)
    line["sent_ms"] = record.ms(record.sent_s)
    line["first_byte_ms"] = record.ms(record.first_byte_s)
    line["ttft_ms"] = record.ms(record.first_token_s)
    line["overhead_ms"] = int(record.overhead_s * 1e6) / 1000 if record.sent_s else None
    line["prompt_tokens"] = usage.prompt_tokens if usage else None
    line["cached_tokens"] = usage.cached_tokens if usage else None
    line["completion_tokens"] = usage.completion_tokens if usage else None
    if record.waited_s:
        line["waited_ms"] = int(record.waited_s * 1e6) / 1000
        line["waits_for"] = record.waits_for
    if record.stalled_s:
        line["stalled_ms"] = int(record.stalled_s * 1e6) / 1000
    if record.degraded:
        line["degraded"] = record.degraded
    if failed := [each for each in record.tries if each.failure]:
        line["failed"] = [
            {
                "backend": each.backend,
                "reason": each.reason,
                "failure": each.failure,
                "began_ms": record.ms(each.began_s),
                "ended_ms": record.ms(each.ended_s),
            }
            for each in failed
        ]


def path_told(path: bytes, *, listed: bool) -> str | None:
    """The path, if it is served. Any other path is text of the client, and is left out."""
    if listed:
        return path.decode("ascii")
    if path.startswith(b"/v1/models/"):
        return "/v1/models/{id}"
    return "/v1/responses/{id}" if path.startswith(b"/v1/responses/") else None


# What follows with its name, if it is there.
_NAMED: Final = (
    "model",
    "waited_ms",
    "waits_for",
    "attempts",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "class",
    "reason",
    "degraded",
    "error",
    "trace_id",
)


def text_of(line: Mapping[str, Any]) -> bytes:
    """One line of text, of the fields of `access_line`. Nothing in them is a client's free text."""
    at = line["at"].isoformat(timespec="milliseconds").replace("+00:00", "Z")
    status, where = line["status"], line.get("backend") or "-"
    told = f"{at} {status} {_ms(line.get('duration_ms'))} {_ms(line.get('ttft_ms'))} {where:<12}"
    told += f" {line['tenant'] or line['client']:<15} {line['method'] or '-':<4}"
    told += f" {line['path'] or '-'}"
    for name in _NAMED:
        if line.get(name) is not None:
            told += f" {name}={line[name]}"
    if line.get("whole") is False:
        told += " whole=no"
    for each in line.get("failed", ()):
        told += f" failed={each['backend']}:{each['failure']}"
    return f"{told} id={line['request_id']}\n".encode()


def _ms(value: float | None) -> str:
    return f"{'-':>12}" if value is None else f"{value:>10.1f}ms"
