"""One answer on a client's connection, framed by us.

Chunked to HTTP/1.1 when its length is not known, until the end of the
connection to HTTP/1.0. An answer that cannot be finished must not look
finished: over 1.1 the chunks lack their end, over 1.0 only a reset says so,
because a plain close there means "complete".
"""

import asyncio
import contextlib
import socket
import struct
from http import HTTPStatus
from typing import Final

from proxy.errors import PenstockError
from proxy.heads import Headers, RequestHead, ResponseHead, end_to_end

_LINGER_RESET: Final = struct.pack("ii", 1, 0)
_REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
_EVENT_STREAM: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
]
# Ours to set: a backend's own are not passed.
_OWN: Final = (b"access-control-", b"x-penstock-", b"x-request-id", b"request-id", b"location")
PING: Final = b": ping\n\n"


class Answer:
    """What one request is answered. `started`: the client has seen a status."""

    __slots__ = (
        "_chunked",
        "_head_only",
        "_headers",
        "_http11",
        "_transport",
        "about",
        "body_bytes",
        "finished",
        "keep_alive",
        "method",
        "request_id",
        "started",
        "status",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        head: RequestHead | None,
        request_id: bytes,
        headers: Headers,
    ) -> None:
        """`head` is None when the request could not even be read; `headers` go with any answer."""
        self._transport = transport
        self._http11 = head is None or head.http11
        self.method = head.method if head is not None else b""
        self._head_only = self.method == b"HEAD"
        self._chunked = False
        self.keep_alive = head is not None and head.keep_alive
        self.request_id = request_id
        self._headers = headers
        self.about: Headers = []  # x-penstock-…: who serves it, at which attempt, why
        self.status = 0
        self.started = False
        self.finished = False
        self.body_bytes = 0

    def start(
        self, status: int, reason: bytes, headers: Headers, length: int | None, body: bytes = b""
    ) -> None:
        """Send the head, with the first bytes of the body in the same write."""
        assert not self.started
        self.started = True
        self.status = status
        parts = [b"HTTP/1.1 %d %b\r\n" % (status, reason or _REASONS.get(status, b""))]
        for fields in (headers, self.about, self._headers):
            for name, value in fields:
                parts += (name, b": ", value, b"\r\n")
        parts += (b"x-request-id: ", self.request_id, b"\r\n")
        bodyless = status in (204, 304)
        if length is not None and not bodyless:
            parts.append(b"content-length: %d\r\n" % length)
        elif not bodyless:
            self._chunked = self._http11
            self.keep_alive = self.keep_alive and self._http11
            if self._chunked:
                parts.append(b"transfer-encoding: chunked\r\n")
        parts.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        head = b"".join(parts)
        if not body or self._head_only or bodyless:
            self._transport.write(head)
            return
        self.body_bytes += len(body)
        if self._chunked:
            body = b"%x\r\n%b\r\n" % (len(body), body)
        self._transport.write(head + body)

    def relay(self, head: ResponseHead, length: int | None, body: bytes = b"") -> None:
        """Start with a backend's head, or, when a hold has sent the 200, go on after it."""
        if self.started:
            if body:
                self.write(body)
            return
        headers = [
            field
            for field in end_to_end(head.headers, head.nominated)
            if not field[0].startswith(_OWN)
        ]
        self.start(head.status, head.reason, headers, length, body)

    def hold(self) -> None:
        """Send the 200 of a stream whose first token is late, or one more comment."""
        if self.started:
            self.write(PING)
        else:
            self.start(200, b"OK", _EVENT_STREAM, None, PING)

    def write(self, data: bytes) -> None:
        """More of the body."""
        if self._head_only:
            return
        self.body_bytes += len(data)
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self._transport.write(data)

    def finish(self) -> None:
        """The answer is whole."""
        self.finished = True
        if self._chunked and not self._head_only:
            self._transport.write(b"0\r\n\r\n")

    def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """A short answer of known length, in one write."""
        self.start(status, b"", headers, len(body), body)
        self.finish()

    def fail(self, error: PenstockError, body: bytes) -> None:
        """An error of penstock's own, before anything was sent."""
        if error.closes:
            self.keep_alive = False
        self.whole(error.status, [(b"content-type", b"application/json"), *error.headers], body)

    def break_off(self, event: bytes) -> None:
        """The answer cannot be finished: say so in its own dialect, then end visibly short.

        A reset could throw the event away before it is read, so 1.1 gets a
        close without the last chunk; 1.0 gets the reset, its only sign.
        """
        self.keep_alive = False
        if self._http11:
            if event and self._chunked:
                self.write(event)
            self._transport.close()
        else:
            reset(self._transport)


def reset(transport: asyncio.Transport) -> None:
    """Close with a reset: `abort` alone gives the peer a clean FIN, as after a whole answer."""
    with contextlib.suppress(OSError):  # closed already
        transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET
        )
    transport.abort()
