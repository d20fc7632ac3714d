"""Asks one backend over HTTP, on a connection of its own: probes, scrapes and other small requests.

The connection is one as requests have: what could not be passed on to a client is no answer here
either, and what is read of it has its turns. `hang_up` ends it, so that the next question opens a
new one: an old one does not show whether new ones are accepted. Without an answer there is a
reason, and never an exception.
"""

import asyncio
import errno
import ssl
from dataclasses import dataclass
from typing import Final

from penstock.proxy.errors.backend import (
    AnswerHeadTooLarge,
    BackendError,
    Lacking,
    Unresolved,
)
from penstock.proxy.wire.connection import BackendConnection, ConnectionOwner
from penstock.proxy.wire.dial import Dialer
from penstock.proxy.wire.heads import ResponseHead

BODY_BYTES_MAX: Final = 1_048_576


@dataclass(frozen=True, slots=True)
class Answer:
    """A status and a body, cut at a limit. `whole`: nothing was cut.

    Without an answer, `reason` says why. `certain`: nobody listens. `own`: the process could not
    ask, which says nothing of the backend.
    """

    status: int = 0
    body: bytes = b""
    whole: bool = True
    reason: str = ""
    certain: bool = False
    own: bool = False


class Questions(ConnectionOwner):
    """Asks the backend of `dialer`, one question at a time. A question may be cancelled."""

    def __init__(self, dialer: Dialer, authorization: bytes | None = None) -> None:
        super().__init__(dialer.loop, dialer.name, dialer.host, dialer.now)
        self._dialer = dialer
        self._connection: BackendConnection | None = None
        self.party += "\0"  # its answers do not wait for those to requests
        # Without compression: of 60 kB of metrics it would cost vLLM's loop another millisecond.
        self._fields = (
            b"host: %b\r\naccept: */*\r\naccept-encoding: identity\r\nuser-agent: penstock\r\n"
            % dialer.authority
        )
        if authorization is not None:
            self._fields += b"authorization: %b\r\n" % authorization

    async def get(self, path: bytes, timeout_s: float, limit_bytes: int = BODY_BYTES_MAX) -> Answer:
        """The answer to a GET, within so much time."""
        return await self._in_time(b"GET", path, b"", b"", timeout_s, limit_bytes)

    async def post(
        self,
        path: bytes,
        body: bytes,
        timeout_s: float,
        fields: bytes = b"",
        limit_bytes: int = BODY_BYTES_MAX,
    ) -> Answer:
        """The answer to a JSON body, within so much time. `fields` are more header lines."""
        fields += b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
        return await self._in_time(b"POST", path, fields, body, timeout_s, limit_bytes)

    def hang_up(self) -> None:
        """End the connection at once. What is unsent is dropped: a backend that does not take it
        would keep the descriptor."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    async def _in_time(
        self,
        method: bytes,
        path: bytes,
        fields: bytes,
        body: bytes,
        timeout_s: float,
        limit_bytes: int,
    ) -> Answer:
        line = b"%b %b%b HTTP/1.1\r\n" % (method, self._dialer.prefix, path)
        head = b"%b%b%b\r\n" % (line, self._fields, fields)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._ask(method, head, body, limit_bytes)
        except TimeoutError:
            return Answer(reason="timeout")
        except ssl.SSLError:
            return Answer(reason="untrusted")  # a bad certificate, its or ours, or no TLS at all
        except Lacking as error:
            return Answer(reason=errno.errorcode.get(error.errno or 0, "lacking"), own=True)
        except Unresolved:
            return Answer(reason="unresolved")
        except ConnectionRefusedError:
            return Answer(reason="unreachable", certain=True)
        except OSError:
            return Answer(reason="unreachable")

    async def _ask(self, method: bytes, head: bytes, body: bytes, limit_bytes: int) -> Answer:
        connection, self._connection = self._connection, None
        if connection is not None and connection.quiet:
            # A connection that closes at this moment says nothing: ask again on a new one.
            answer = await self._answer(connection, method, head, body, limit_bytes)
            if not answer.reason or connection.answer_began:
                return answer
        elif connection is not None:
            connection.abort()
        connection = await self._dialer.open(self)
        return await self._answer(connection, method, head, body, limit_bytes)

    async def _answer(
        self,
        connection: BackendConnection,
        method: bytes,
        head: bytes,
        body: bytes,
        limit_bytes: int,
    ) -> Answer:
        """Ask on this connection. Raises an SSLError of the backend's."""
        self.reads, self.uploads = self._dialer.reads, self._dialer.uploads
        collected = _Collected(connection, limit_bytes)
        connection.send(head, body, collected, method=method, sender=self.party)
        try:
            answer = await collected.answer
        except asyncio.CancelledError:  # later bytes must not answer the next question
            connection.abort()
            raise
        if answer.reason and isinstance(connection.failure, ssl.SSLError):
            raise connection.failure  # with TLS 1.3 a certificate is refused after the handshake
        return answer

    # What its connection tells ------------------------------------------------------------------

    def put(self, connection: BackendConnection) -> None:
        self._connection = connection

    def forget(self, connection: BackendConnection) -> None:
        if self._connection is connection:
            self._connection = None

    def distrust(self) -> None:
        """Such a connection is not used again anyway."""


class _Collected:
    """Takes an answer from its connection, up to a limit."""

    def __init__(self, connection: BackendConnection, limit_bytes: int) -> None:
        self._connection = connection
        self._limit_bytes = limit_bytes
        self._status = 0
        self._pieces: list[bytes] = []
        self._left_bytes = limit_bytes
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def head(self, head: ResponseHead) -> None:
        self._status = head.status

    def body(self, data: bytes) -> None:
        self._pieces.append(data)
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            self._connection.abort()
            body = b"".join(self._pieces)[: self._limit_bytes]
            self._tell(Answer(self._status, body, whole=False))

    def end(self) -> None:
        self._tell(Answer(self._status, b"".join(self._pieces)))

    def lost(self, error: BackendError) -> None:
        too_large = isinstance(error, AnswerHeadTooLarge)
        self._tell(Answer(reason="too_large" if too_large else "unreachable"))

    def _tell(self, answer: Answer) -> None:
        self._pieces = []
        if not self.answer.done():
            self.answer.set_result(answer)
