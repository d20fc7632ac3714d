"""Connections to the backends: one request at a time on each, pooled while idle.

The pool gives the youngest first and keeps none longer than 3.5 s, because vLLM
(uvicorn) closes at 5.0 s and a POST must not meet that close. The end of an
answer is decided from method, status and framing; a connection is used again
only when request and answer both ended and nothing came after.

What a backend sends unasked would become the answer to somebody else's request.
So a connection is used again only for the credentials that it was used for; it
rests before, which is when such bytes come; a byte on it kills it, also one that
the loop has not read yet; and a backend that sent one is not trusted with a
second request on a connection for a while.
"""

import asyncio
import errno
import logging
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any, Final, Protocol, cast
from urllib.parse import urlsplit

from proxy.deadline import Deadline
from proxy.dechunk import Dechunker, MalformedChunks
from proxy.edit import Edit
from proxy.errors import (
    AnswerCut,
    AnswerHeadTooLarge,
    AnswerMalformed,
    BackendError,
    ConnectFailed,
    ConnectionRefused,
    ConnectionReset,
    PenstockError,
)
from proxy.heads import ResponseHead, begins_answer, parse_response_head
from proxy.host import Host, Names
from proxy.pieces import Pieces, write
from proxy.tls import TlsConnection

logger = logging.getLogger(__name__)

IDLE_S: Final = 3.5
IDLE_MAX: Final = 256
# A server that writes more than its answer does so with it, or in the turn after. At 1,000
# requests/s to one backend this keeps 20 more connections open, each cold when its turn comes:
# 7 % of a small request's CPU, and less rest lets more bytes through.
REST_S: Final = 0.02
# One request a connection, after bytes that nobody asked for.
DISTRUST_S: Final = 600.0
HEAD_BYTES_MAX: Final = 65_536
# 1xx answers before the final one. vLLM sends none.
INTERIM_MAX: Final = 16
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
        "_interim",
        "_keep_alive",
        "_one_shot",
        "_paused",
        "_pending",
        "_pieces",
        "_pool",
        "_remaining",
        "_to_head_request",
        "_transport",
        "answer_began",
        "credentials",
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
        self._interim = 0
        self._keep_alive = False
        self._one_shot = False
        self._to_head_request = False
        self._paused = False
        self._pending: Callable[[int], list[Any]] = _never
        self._pieces: Pieces | None = None  # of a large body
        self.sink: Sink | None = None
        self.credentials = b""  # of the requests it has served
        self.reused = False
        self.answer_began = False
        self.idle_since_s = 0.0
        self.epoch = pool.host.epoch  # of the addresses that it was dialed by
        # One timer for all requests to come: a new one each would cost more than all else here.
        self.deadline = Deadline(pool.loop, self._expired)
        self.on_deadline: Callable[[], None] | None = None

    # What the exchange does ----------------------------------------------------------

    def send(
        self, head: bytes, body: bytes, sink: Sink, *, method: bytes, edit: Edit | None = None
    ) -> None:
        """Send one request; its answer goes to `sink`. An edited body is a large one."""
        assert self.sink is None
        self.sink = sink
        self.answer_began = False
        self._in_body = False
        self._dechunker = None
        self._buffer = b""
        self._interim = 0
        # A server that ignores the body of a GET would take it for the next request.
        self._one_shot = method != b"POST" and bool(body)
        self._to_head_request = method == b"HEAD"
        transport = self._transport
        if transport is None or transport.is_closing():
            self.sink = None
            sink.lost(ConnectionReset())
        else:
            self._pieces = write(self._pool.loop, transport, head, body, edit)

    def abort(self) -> None:
        """Give up the answer and the connection: the backend frees its engine at once."""
        self.sink = None
        if self._pieces is not None:
            self._pieces.drop()
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
    def quiet(self) -> bool:
        """Whether it is open and nothing has come, not even what the loop has still to read."""
        transport = self._transport
        return transport is not None and not transport.is_closing() and not self._pending(0)

    # What the loop calls --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        tune(sock)
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(sock.fileno(), select.POLLIN)
            self._pending = poll.poll

    def pause_writing(self) -> None:
        if self._pieces is not None:
            self._pieces.pause()

    def resume_writing(self) -> None:
        if self._pieces is not None:
            self._pieces.resume()

    def data_received(self, data: bytes) -> None:
        sink = self.sink
        dechunker = self._dechunker
        if sink is None:
            self._pool.distrust()  # unsolicited: whatever it is, nobody asked for it
            self.abort()
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
            end = data.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX)
            if end < 0:
                if not begins_answer(data):
                    self._fail(AnswerMalformed())
                elif len(data) >= HEAD_BYTES_MAX:
                    self._fail(AnswerHeadTooLarge())
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
            self._interim += 1
            if head.status == 101 or self._interim > INTERIM_MAX:  # nobody asked for an upgrade
                self._fail(AnswerMalformed())
                return
        self._buffer = b""
        self._begin_body(head, data)

    def _begin_body(self, head: ResponseHead, data: bytes) -> None:
        self._in_body = True
        self._keep_alive = head.keep_alive and not self._one_shot
        self._dechunker = None
        if self._to_head_request:
            self._remaining = 0
        elif head.status in (204, 304):
            self._remaining = head.length = 0
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
        unsent = self._pieces is not None and self._pieces.left
        self._dechunker = None
        if surplus:
            self._pool.distrust()
        try:
            sink.end()
        except Exception:  # a fault of ours must not leave the client waiting
            logger.exception("answer failed at its end")
            transport.abort()
            sink.lost(AnswerMalformed())
            return
        # Only now, when the sink has let go of it: the last write may still have paused it.
        if surplus or not self._keep_alive or unsent or transport.get_write_buffer_size():
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
        # Oldest first; what rests is younger than what has rested.
        self._idle: deque[BackendConnection] = deque()
        self._resting: deque[BackendConnection] = deque()
        self._distrusted_until_s = 0.0
        self._deadline = Deadline(loop, self._expire, now)
        self.authority = parts.netloc.rpartition("@")[2].encode("ascii")

    def trust(self, tls: ssl.SSLContext | None) -> None:
        """Verify by this from now on; what is idle was verified by another."""
        if self._secure and tls is not self.tls:
            self.tls = tls
            self._drop_idle()

    def take_idle(self, credentials: bytes = b"") -> BackendConnection | None:
        """The youngest connection of these credentials that has rested and is surely open."""
        now_s = self._now()
        idle, resting = self._idle, self._resting
        while resting and now_s - resting[0].idle_since_s >= REST_S:
            idle.append(resting.popleft())
        for index in range(len(idle) - 1, -1, -1):
            connection = idle[index]
            if connection.credentials == credentials:
                del idle[index]
                if (
                    now_s - connection.idle_since_s < IDLE_S
                    and connection.epoch == self.host.epoch
                    and connection.quiet
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
        if connection.idle_since_s < self._distrusted_until_s:
            connection.abort()
            return
        self._resting.append(connection)
        if len(self._idle) + len(self._resting) > IDLE_MAX:
            (self._idle or self._resting).popleft().abort()
        if len(self._idle) + len(self._resting) == 1:
            self._deadline.set(connection.idle_since_s + IDLE_S)

    def distrust(self) -> None:
        """The backend sent what nobody asked for: use no connection twice for a while."""
        self._distrusted_until_s = self._now() + DISTRUST_S
        self._drop_idle()

    def forget(self, connection: BackendConnection) -> None:
        """A connection was lost; it may have been idle."""
        for waiting in (self._idle, self._resting):
            if connection in waiting:
                waiting.remove(connection)

    def close(self) -> None:
        """Close what is idle; connections in use end with their answers."""
        self.host.close()
        self._deadline.close()
        self._drop_idle()

    def _drop_idle(self) -> None:
        for waiting in (self._idle, self._resting):
            while waiting:
                waiting.pop().abort()

    def _expire(self) -> None:
        limit_s = self._now() - IDLE_S
        for waiting in (self._idle, self._resting):
            while waiting and waiting[0].idle_since_s <= limit_s + 0.002:
                waiting.popleft().abort()
            if waiting:
                self._deadline.set(waiting[0].idle_since_s + IDLE_S)
                return


def _never(timeout_ms: int) -> list[Any]:
    """What is pending where the platform cannot tell."""
    return []


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
