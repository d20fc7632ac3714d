"""One client connection: requests in, in order, one answer at a time.

As with uvicorn, a FIN from the client is its leaving, an idle connection is closed after
`keep_alive_s`, and pipelined requests wait for their turn.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, cast

import httptools

from penstock.bench.sim.faults import FaultKind, Faults
from penstock.bench.sim.reply import Reply, reset_on_close, second_answer
from penstock.bench.sim.request import Request

_INVALID: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"connection: close\r\n\r\nInvalid HTTP request received."
)


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
