"""One answer on a client's connection, framed by penstock.

When the length is not known, HTTP/1.1 gets chunks and HTTP/1.0 an answer that ends with
the connection. An answer that cannot be finished must not look finished. Over 1.1 the
last chunk is missing. Over 1.0 only a reset says so, because there a plain close means
"complete".
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from penstock.proxy.errors.error import PenstockError
from penstock.proxy.wire import native
from penstock.proxy.wire.forwarded_head import forwarded_answer_headers
from penstock.proxy.wire.header_fields import Headers, lines_of
from penstock.proxy.wire.heads import RequestHead, ResponseHead
from penstock.proxy.wire.sockets import reset, write

_REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
# Other proxies on the way must pass each event on at once. nginx reads the first of these.
_UNBUFFERED: Final = [(b"x-accel-buffering", b"no"), (b"cache-control", b"no-cache")]
_EVENT_STREAM: Final = [(b"content-type", b"text/event-stream; charset=utf-8"), *_UNBUFFERED]
PING: Final = b": ping\n\n"


def any_chunk_of(data: bytes) -> bytes:
    """The twin of `native.chunk_of`."""
    return b"%x\r\n%b\r\n" % (len(data), data)


_chunk_of: Final = native.chunk_of if native.AVAILABLE else any_chunk_of


class Answer:
    """The answer to one request. `started`: the client was sent a status."""

    def __init__(
        self,
        transport: asyncio.Transport,
        head: RequestHead | None,
        request_id: bytes,
        headers: Headers,
    ) -> None:
        """`head` is None when the request could not be read. `headers` go with any answer."""
        self._transport = transport
        self._http11 = head is None or head.http11
        self.method = head.method if head is not None else b""
        self._head_only = self.method == b"HEAD"
        self._chunked = False
        self._events = False  # a stream of events, without a length
        self.keep_alive = head is not None and head.keep_alive
        self.request_id = request_id
        self._headers = headers
        self.about: Headers = []  # x-penstock-…: the backend, the number of attempts, the reason
        self.timing: Callable[[], bytes] | None = None  # what its client wants to know of its times
        self.status = 0
        self.started = False
        self.finished = False
        self.body_bytes = 0

    def tell(self, headers: Headers) -> None:
        """Add headers that go with any answer."""
        self._headers = [*self._headers, *headers]

    def start(
        self, status: int, reason: bytes, headers: Headers, length: int | None, body: bytes = b""
    ) -> None:
        """Send the head, with the first bytes of the body in the same write."""
        assert not self.started
        self.started = True
        self.status = status
        fields = [*headers, *self.about, *self._headers, (b"x-request-id", self.request_id)]
        if self.timing is not None:
            fields.append((b"server-timing", self.timing()))
        bodyless = status in (204, 304)
        if length is not None and not bodyless:
            fields.append((b"content-length", b"%d" % length))
        elif not bodyless:
            self._chunked = self._http11
            self.keep_alive = self.keep_alive and self._http11
            if self._chunked:
                fields.append((b"transfer-encoding", b"chunked"))
        if not self.keep_alive:
            fields.append((b"connection", b"close"))
        reason = reason or _REASONS.get(status, b"")
        head = b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, reason, lines_of(fields))
        if not body or self._head_only or bodyless:
            self._transport.write(head)
            return
        self.body_bytes += len(body)
        if self._chunked:
            body = _chunk_of(body)
        write(self._transport, head + body)

    def relay(self, head: ResponseHead, length: int | None, body: bytes = b"") -> None:
        """Start with a backend's head. If a hold has sent the 200 already, add the body only."""
        if self.started:
            if body:
                self.write(body)
            return
        headers = forwarded_answer_headers(head.headers, head.nominated)
        if head.content_type == b"text/event-stream":
            self._events = length is None
            given = {name for name, _ in headers}
            headers += [field for field in _UNBUFFERED if field[0] not in given]
        self.start(head.status, head.reason, headers, length, body)

    def hold(self) -> None:
        """Send the 200 of a stream whose first token is late. After that send one more comment."""
        if self.started:
            self.write(PING)
        else:
            self._events = True
            self.start(200, b"OK", _EVENT_STREAM, None, PING)

    def write(self, data: bytes) -> None:
        if self._head_only:
            return
        self.body_bytes += len(data)
        if self._chunked:
            data = _chunk_of(data)
        write(self._transport, data)

    def finish(self) -> None:
        """Mark the answer as complete, and send the last chunk if it is chunked."""
        self.finished = True
        if self._chunked and not self._head_only:
            self._transport.write(b"0\r\n\r\n")

    def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a short answer of known length, in one write."""
        self.start(status, b"", headers, len(body), body)
        self.finish()

    def fail(self, error: PenstockError, body: bytes) -> None:
        """Send an error of penstock's own. Nothing was sent before."""
        if error.closes:
            self.keep_alive = False
        self.whole(error.status, [(b"content-type", b"application/json"), *error.headers], body)

    def break_off(self, event: bytes) -> None:
        """End an answer that cannot be finished: send the error event, then cut the answer.

        A reset could destroy the event before it is read. So 1.1 gets a close without the last
        chunk. 1.0 gets a reset after the event, because it has no other sign.
        """
        self.keep_alive = False
        if not self._http11:
            reset(self._transport, event if self._events else b"")
            return
        if event and self._chunked:
            self.write(event)
        self._transport.close()
