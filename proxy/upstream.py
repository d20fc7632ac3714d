"""Connections to the backends: one request at a time on each, pooled while idle.

The pool gives the youngest first and keeps none longer than 3.5 s, because vLLM
(uvicorn) closes at 5.0 s and a POST must not meet that close. A byte on an idle
connection kills it: it would become the answer to somebody else's request. The
end of an answer is decided from method, status and framing; a connection is
used again only when request and answer both ended and nothing came after.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol, cast
from urllib.parse import urlsplit

from proxy.deadline import Deadline
from proxy.dechunk import Dechunker, MalformedChunks
from proxy.errors import (
    AnswerCut,
    AnswerMalformed,
    BackendError,
    ConnectFailed,
    ConnectionRefused,
    ConnectionReset,
    PenstockError,
)
from proxy.heads import ResponseHead, parse_response_head
from proxy.host import Host, Names
from proxy.tls import TlsConnection

logger = logging.getLogger(__name__)

IDLE_S: Final = 3.5
IDLE_MAX: Final = 256
HEAD_BYTES_MAX: Final = 65_536
# What the kernel may hold of an answer whose client does not read.
RECEIVE_BUFFER_BYTES: Final = 262_144
# A host that vanished: first keepalive after 15 s, gone by 30 s.
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_COUNT = 15, 5, 3
USER_TIMEOUT_MS: Final = 30_000


class NoDescriptors(Exception):
    """The process may open no more: its own limit, and no fault of the backend's."""


class Sink(Protocol):
    """What an answer is given to, in this order: head, body…, then end or lost."""

    def head(self, head: ResponseHead) -> None: ...
    def body(self, data: bytes) -> None: ...
    def end(self) -> None: ...
    def lost(self, error: BackendError) -> None: ...


class BackendConnection(asyncio.Protocol):
    """One connection to a backend. `sink` is where its current answer goes."""

    __slots__ = (
        "_buffer",
        "_dechunker",
        "_in_body",
        "_keep_alive",
        "_paused",
        "_pool",
        "_remaining",
        "_to_head_request",
        "_transport",
        "answer_began",
        "deadline",
        "epoch",
        "idle_since_s",
        "on_deadline",
        "reused",
        "sink",
    )

    def __init__(self, pool: "ConnectionPool") -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._dechunker: Dechunker | None = None
        self._remaining: int | None = 0
        self._in_body = False
        self._keep_alive = False
        self._to_head_request = False
        self._paused = False
        self.sink: Sink | None = None
        self.reused = False
        self.answer_began = False
        self.idle_since_s = 0.0
        self.epoch = pool.host.epoch  # of the addresses that it was dialed by
        # One timer for all requests to come: a new one each would cost more than all else here.
        self.deadline = Deadline(pool.loop, self._expired)
        self.on_deadline: Callable[[], None] | None = None

    # What the exchange does ----------------------------------------------------------

    def send(self, head: bytes, body: bytes, sink: Sink, *, method: bytes) -> None:
        """Send one request; its answer goes to `sink`."""
        assert self.sink is None
        self.sink = sink
        self.answer_began = False
        self._in_body = False
        self._dechunker = None
        self._buffer = b""
        self._to_head_request = method == b"HEAD"
        transport = self._transport
        if transport is None or transport.is_closing():
            self.sink = None
            sink.lost(ConnectionReset())
        elif len(body) <= 65_536:  # one write and one segment for the small
            transport.write(head + body)
        else:  # no copy of the large
            transport.write(head)
            transport.write(body)

    def abort(self) -> None:
        """Give up the answer and the connection: the backend frees its engine at once."""
        self.sink = None
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Stop reading: the client cannot take more."""
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    # What the loop calls --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        tune(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        sink = self.sink
        dechunker = self._dechunker
        if sink is None:
            self.abort()  # unsolicited: whatever it is, nobody asked for it
        elif dechunker is not None:  # first, because it is what streams are made of
            try:
                body = dechunker.feed(data)
            except MalformedChunks:
                self._fail(AnswerMalformed())
                return
            if body:
                sink.body(body)
            if dechunker.complete:
                self._complete(surplus=dechunker.surplus)
        elif self._in_body:
            self._receive_counted(sink, data)
        else:
            self._receive_head(data)

    def _expired(self) -> None:
        if self.on_deadline is not None:
            self.on_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self.deadline.close()
        self._pool.forget(self)
        sink, self.sink = self.sink, None
        if sink is None:
            return
        if not self.answer_began:
            sink.lost(ConnectionReset())
        elif self._in_body and self._dechunker is None and self._remaining is None and exc is None:
            sink.end()  # the body was to last until the end of the connection
        else:
            sink.lost(AnswerCut())

    # Reading an answer ------------------------------------------------------------------

    def _receive_head(self, data: bytes) -> None:
        self.answer_began = True
        data = self._buffer + data if self._buffer else data
        while True:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > HEAD_BYTES_MAX:
                    self._fail(AnswerMalformed())
                self._buffer = data
                return
            try:
                head = parse_response_head(data[:end])
            except PenstockError:
                self._fail(AnswerMalformed())
                return
            data = data[end + 4 :]
            if head.status >= 200:
                break
            if head.status == 101:  # nobody asked for an upgrade
                self._fail(AnswerMalformed())
                return
        self._buffer = b""
        self._begin_body(head, data)

    def _begin_body(self, head: ResponseHead, data: bytes) -> None:
        self._in_body = True
        self._keep_alive = head.keep_alive
        self._dechunker = None
        if self._to_head_request or head.status in (204, 304):
            self._remaining = 0
        elif head.chunked:
            self._dechunker = Dechunker()
        else:
            self._remaining = head.length
        sink = self.sink
        assert sink is not None
        sink.head(head)  # may put another sink in its place, or abort
        if self.sink is not None and (data or self._remaining == 0):
            self.data_received(data)

    def _receive_counted(self, sink: Sink, data: bytes) -> None:
        if self._remaining is None:
            sink.body(data)
            return
        taken = data[: self._remaining]
        self._remaining -= len(taken)
        if taken:
            sink.body(taken)
        if self._remaining == 0:
            self._complete(surplus=len(taken) < len(data))

    def _complete(self, *, surplus: bool) -> None:
        sink, self.sink = self.sink, None
        if sink is None:
            return  # the sink aborted while it took the last bytes
        transport = self._transport
        assert transport is not None
        self._dechunker = None
        try:
            sink.end()
        except Exception:  # a fault of ours must not leave the client waiting
            logger.exception("answer failed at its end")
            transport.abort()
            sink.lost(AnswerMalformed())
            return
        # Only now, when the sink has let go of it: the last write may still have paused it.
        if surplus or not self._keep_alive or transport.get_write_buffer_size():
            transport.abort()
        else:
            self.resume()
            self._pool.put(self)

    def _fail(self, error: BackendError) -> None:
        sink = self.sink
        self.abort()
        if sink is not None:
            sink.lost(error)


class ConnectionPool:
    """The connections to one backend. `connect_timeout_s` may change while it is used."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        url: str,
        *,
        connect_timeout_s: float,
        name: str = "",
        names: Names | None = None,
        tls: ssl.SSLContext | None = None,
        now: Callable[[], float] = monotonic,
    ) -> None:
        """`name` is the backend's, for the log."""
        parts = urlsplit(url)
        self.loop = loop
        self.host = Host(loop, parts.hostname or "", name, names or Names(), now)
        self.connect_timeout_s = connect_timeout_s
        self._now = now
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._secure = parts.scheme == "https"
        self.tls = tls  # of https: replaced when a configuration is
        self._idle: deque[BackendConnection] = deque()  # oldest first
        self._deadline = Deadline(loop, self._expire, now)
        self.authority = parts.netloc.rpartition("@")[2].encode("ascii")

    def take_idle(self) -> BackendConnection | None:
        """The youngest idle connection that is surely still open, or None."""
        while self._idle:
            connection = self._idle.pop()
            if (
                connection.usable
                and connection.epoch == self.host.epoch
                and self._now() - connection.idle_since_s < IDLE_S
            ):
                connection.reused = True
                return connection
            connection.abort()
        return None

    async def dial(self) -> BackendConnection:
        """Open a new connection, to the first address that takes it.

        Raises ConnectionRefused when all refuse, NoDescriptors when there are none left
        for it, else ConnectFailed.
        """
        refused = True
        address = ""
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                for address in await self.host.addresses():
                    try:
                        return await self._open(address)
                    except OSError as error:
                        if error.errno in (errno.EMFILE, errno.ENFILE):
                            raise NoDescriptors from None
                        refused = refused and isinstance(error, ConnectionRefusedError)
                        self.host.failed(address)
        except (OSError, TimeoutError):  # no address is known, or time is up
            self.host.failed(address)
            raise ConnectFailed from None
        raise ConnectionRefused if refused else ConnectFailed

    async def _open(self, address: str) -> BackendConnection:
        connection = BackendConnection(self)
        context = self.tls
        if not self._secure:
            await self.loop.create_connection(lambda: connection, address, self._port)
            return connection
        assert context is not None
        _, tls = await self.loop.create_connection(
            lambda: TlsConnection(
                self.loop,
                context,
                connection,
                handshake_s=self.connect_timeout_s,
                server_name=self.host.name,
            ),
            address,
            self._port,
        )
        try:
            await tls.opened
        except BaseException:  # cancelled too: nobody else knows of it
            tls.abort()
            raise
        return connection

    def put(self, connection: BackendConnection) -> None:
        """Take back a connection whose request and answer both ended."""
        if connection.epoch != self.host.epoch:
            connection.abort()
            return
        connection.idle_since_s = self._now()
        connection.on_deadline = None
        connection.deadline.clear()
        self._idle.append(connection)
        if len(self._idle) > IDLE_MAX:
            self._idle.popleft().abort()
        if len(self._idle) == 1:
            self._deadline.set(connection.idle_since_s + IDLE_S)

    def forget(self, connection: BackendConnection) -> None:
        """A connection was lost; it may have been idle."""
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """Close what is idle; connections in use end with their answers."""
        self.host.close()
        self._deadline.close()
        while self._idle:
            self._idle.pop().abort()

    def _expire(self) -> None:
        limit_s = self._now() - IDLE_S
        while self._idle and self._idle[0].idle_since_s <= limit_s + 0.002:
            self._idle.popleft().abort()
        if self._idle:
            self._deadline.set(self._idle[0].idle_since_s + IDLE_S)


def tune(sock: socket.socket) -> None:
    """No delay, bounded buffer, and a peer that vanished is noticed within 30 s."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    keep_alive(sock)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)


def keep_alive(sock: socket.socket) -> None:
    """Notice a peer that vanished without a word (where the platform can)."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_COUNT),
    ):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
