"""One client connection: requests in, in order, one answer at a time.

As with uvicorn, a FIN from the client is its leaving, an idle connection is closed after
`keep_alive_s`, and pipelined requests wait for their turn. Answers are framed as uvicorn frames
them: streams are chunked, one chunk an event, and bytes go to the transport in the call that makes
them. Faults that bend the framing (splits, CR LF, second answers) are applied here; which answer
to give is decided elsewhere.
"""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, Protocol, cast

import httptools

from penstock.bench.sim.faults import Fault, FaultKind, Faults, Taken

JSON: Final = "application/json"
PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"

_SECOND_BODY: Final = b'{"object":"second answer"}'
_BENDING: Final = frozenset({FaultKind.SPLIT, FaultKind.CRLF, FaultKind.CUT_AT_BYTE})
_INVALID: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"connection: close\r\n\r\nInvalid HTTP request received."
)


@dataclass(slots=True)
class Request:
    """One request as it came. Header names and values are the client's bytes."""

    method: str = ""
    target: str = ""
    version: str = "1.1"
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    keep_alive: bool = True

    @property
    def line(self) -> str:
        return f"{self.method} {self.target} HTTP/{self.version}"

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def header(self, name: str) -> str:
        """The first value of a header, or an empty string."""
        wanted = name.encode()
        return next((v.decode("latin-1") for n, v in self.headers if n.lower() == wanted), "")


class Reply:
    """Writes one answer to a connection; `gone` is called if the client leaves before its end."""

    def __init__(
        self,
        transport: asyncio.Transport,
        clock: Callable[[], float],
        finished: Callable[["Reply"], None],
        *,
        keep_alive: bool,
    ) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self.keep_alive = keep_alive
        self._ended = False
        self._bent = False
        self._split_rest = b""
        self._event_bytes = 0
        self._finished = finished
        self.faults: Taken = {}
        self.gone: Callable[[], None] | None = None
        self.muted = False
        """Writes nothing: the server hangs."""

    def apply(self, faults: Taken) -> None:
        """Let these faults bend this answer."""
        self.faults = faults
        self._bent = not _BENDING.isdisjoint(faults)

    def whole(
        self, status: int, body: bytes, content_type: str = JSON, *, vary: bool = True
    ) -> None:
        """Send a whole answer and end it; vLLM adds `vary` unless a handler has failed."""
        headers = {"content-length": str(len(body))}
        if body:
            headers["content-type"] = content_type
        if vary:
            headers["vary"] = "Origin"
        self._write(self._head(status, headers) + b"\r\n" + body)
        self._end()

    def open_stream(self) -> None:
        """Send the 200 and its headers; events follow."""
        headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "vary": "Origin",
            "transfer-encoding": "chunked",
        }
        self._write(self._head(200, headers) + b"\r\n")

    def event(self, event: bytes) -> None:
        if self._bent:
            self._bent_event(event)
        elif not self.muted:
            self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))

    def close_stream(self) -> None:
        if self._ended:
            return
        if self._split_rest:
            self._loop.call_later(self.faults[FaultKind.SPLIT].delay_s, self.close_stream)
            return
        self._write(b"0\r\n\r\n")
        self._end()

    def head_only(self, length: int) -> None:
        """Promise a JSON body that does not come."""
        head = self._head(200, {"content-length": str(length), "content-type": JSON})
        self._write(head + b"\r\n")

    def raw(self, data: bytes) -> None:
        self._write(data)

    def cut(self, *, rst: bool) -> None:
        """End the connection in the middle of an answer; what was said so far still goes out."""
        self._ended = True
        if rst:
            reset_on_close(self._transport)
        self._transport.close()

    def _head(self, status: int, headers: dict[str, str]) -> bytes:
        """Status line and headers, without the empty line that ends them."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        close = "" if self.keep_alive else "connection: close\r\n"
        date = formatdate(self._clock(), usegmt=True)
        phrase = HTTPStatus(status).phrase
        return (
            f"HTTP/1.1 {status} {phrase}\r\ndate: {date}\r\nserver: uvicorn\r\n{lines}{close}"
        ).encode()

    def _write(self, data: bytes) -> None:
        if not self.muted:
            self._transport.write(data)

    def _end(self) -> None:
        if self.muted or self._ended:
            return
        self._ended = True
        if FaultKind.SECOND_ANSWER in self.faults:
            self._transport.write(second_answer())
        self._finished(self)

    def _bent_event(self, event: bytes) -> None:
        if FaultKind.CRLF in self.faults:
            event = event.replace(b"\n", b"\r\n")
        ending = self.faults.get(FaultKind.CUT_AT_BYTE)
        if ending is not None:
            self._event_until(event, ending)
            return
        chunk = b"%x\r\n%b\r\n" % (len(event), event)
        split = self.faults.get(FaultKind.SPLIT)
        if split is None:
            self._write(chunk)
            return
        # What is still held back goes first, so that events keep their order.
        self._flush_rest()
        cut = chunk.index(b"\n") + 1 + split.at_byte
        self._write(chunk[:cut])
        self._split_rest = chunk[cut:]
        self._loop.call_later(split.delay_s, self._flush_rest)

    def _event_until(self, event: bytes, cut: Fault) -> None:
        """The event, or as much of it as goes out before the connection ends."""
        if self._ended:
            return
        left = cut.at_byte - self._event_bytes
        self._event_bytes += len(event)
        self._write(b"%x\r\n%b" % (len(event), event[:left]))
        if left <= len(event):
            self.cut(rst=cut.rst)
        else:
            self._write(b"\r\n")

    def _flush_rest(self) -> None:
        rest, self._split_rest = self._split_rest, b""
        if rest:
            self._write(rest)


def reset_on_close(transport: asyncio.Transport) -> None:
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def second_answer() -> bytes:
    """A complete answer that nobody asked for."""
    head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(_SECOND_BODY)}\r\ncontent-type: {JSON}\r\n\r\n"
    return head.encode() + _SECOND_BODY


class Server(Protocol):
    """Whose a connection is: it is told of the connection, and answers its requests."""

    faults: Faults
    clock: Callable[[], float]
    keep_alive_s: float

    def connected(self, connection: "Connection") -> None: ...
    def disconnected(self, connection: "Connection") -> None: ...
    def dispatch(self, request: Request, reply: Reply) -> None: ...


class Connection(asyncio.Protocol):
    """Parses requests and gives each to the server with a `Reply` to answer it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._queue: deque[Request] = deque()
        self._reply: Reply | None = None
        self._deaf = False
        self._idle: asyncio.TimerHandle | None = None
        self._incoming = Request()
        self._url: list[bytes] = []
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server.connected(self)
        self._deaf = self._server.faults.take(FaultKind.HANG_ACCEPT) is not None

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_idle()
        self._server.disconnected(self)
        if self._reply is not None and self._reply.gone is not None:
            self._reply.gone()
        self._transport = None

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._stop_idle()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # the message counts as complete: answer it as if no upgrade had been asked
        except httptools.HttpParserError:
            assert self._transport is not None
            self._transport.write(_INVALID)
            self._transport.close()
            return
        self._serve()

    def abort(self, *, rst: bool = False) -> None:
        """End the connection from the server's side, dropping what is unsent."""
        if self._transport is not None:
            if rst:
                reset_on_close(self._transport)
            self._transport.abort()

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        self._incoming = Request()
        self._url = []
        self._body = []

    def on_url(self, url: bytes) -> None:
        self._url.append(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._incoming.headers.append((name, value))

    def on_headers_complete(self) -> None:
        request = self._incoming
        request.method = self._parser.get_method().decode()
        request.target = b"".join(self._url).decode("latin-1")
        request.version = self._parser.get_http_version()
        request.keep_alive = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._incoming.body = b"".join(self._body)
        self._queue.append(self._incoming)

    # Answers, one after the other.

    def _serve(self) -> None:
        while self._queue and self._reply is None:
            transport = self._transport
            if transport is None or transport.is_closing():
                return
            request = self._queue.popleft()
            self._reply = Reply(
                transport, self._server.clock, self._finished, keep_alive=request.keep_alive
            )
            self._server.dispatch(request, self._reply)

    def _finished(self, reply: Reply) -> None:
        self._reply = None
        transport = self._transport
        if transport is None:
            return
        if not reply.keep_alive:
            transport.close()
            return
        fault = reply.faults.get(FaultKind.UNSOLICITED)
        if fault is not None:
            self._loop.call_later(fault.delay_s, self._write_unsolicited)
        if self._queue:
            self._loop.call_soon(self._serve)
        else:
            self._idle = self._loop.call_later(self._server.keep_alive_s, transport.close)

    def _write_unsolicited(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(second_answer())

    def _stop_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
