"""One connection to a backend for probes. It asks one question at a time."""

import asyncio
import ssl
from dataclasses import dataclass
from typing import Final

import httptools

# The limit for an answer without its body: the head and the framing of chunks.
HEAD_BYTES_MAX: Final = 65_536
# Each of these is one call of the parser. A read of 256 KB may hold tens of thousands.
LINES_MAX: Final = 256  # lines of heads and trailers
INTERIM_MAX: Final = 8  # 1xx answers before the final one
PIECES_MAX: Final = 8_192  # pieces of a body: one for each read or chunk


class Unheard(OSError):
    """The connection ended before the answer did, or the bytes are not HTTP."""


class Overlong(Unheard):
    """The head, trailers or interim answers exceed a limit."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A status and a body, cut at a limit. `whole`: nothing was cut."""

    status: int
    body: bytes
    whole: bool = True


class Line(asyncio.Protocol):
    """Reads answers up to a limit. Bytes that nobody asked for end the connection."""

    __slots__ = (
        "_body_bytes",
        "_bytes",
        "_framed",
        "_headed",
        "_interim",
        "_limit_bytes",
        "_lines",
        "_overlong",
        "_parser",
        "_pieces",
        "_transport",
        "_waiter",
        "heard",
        "open",
    )

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Answer] | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._pieces: list[bytes] = []  # of the body
        self._body_bytes = 0
        self._lines = self._interim = 0
        self._overlong = False
        self._bytes = 0  # received for this answer
        self._framed = False  # the answer tells where it ends
        self._headed = False  # its head is whole
        self._limit_bytes = 0
        self.heard = False  # some bytes of this answer have come
        self.open = False  # another question may be asked

    async def ask(self, request: bytes, limit_bytes: int) -> Answer:
        """Send a request and wait for its answer. May be cancelled.

        Raises Unheard, or an SSLError of the backend's.
        """
        assert self._transport is not None
        self._waiter = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._pieces = []
        self._body_bytes = self._lines = self._interim = self._bytes = 0
        self._overlong = False
        self._framed = self._headed = self.heard = False
        self._limit_bytes = limit_bytes
        self._transport.write(request)
        try:
            return await self._waiter
        except asyncio.CancelledError:  # later bytes must not answer the next question
            self._abort()
            raise
        finally:
            self._forget()

    def close(self) -> None:
        """End the connection at once. Nobody may be waiting for an answer.

        What is unsent is dropped: a backend that does not take it would keep the descriptor.
        """
        self._abort()

    # The transport ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is no asyncio.Transport
        self.open = True

    def data_received(self, data: bytes) -> None:
        if self._parser is None or self._waiter is None or self._waiter.done():
            self._abort()  # nobody asked
            return
        self.heard = True
        self._bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._lost()
        if self._body_bytes >= self._limit_bytes:
            self._answered(whole=False)
            self._abort()
        elif self._bytes > HEAD_BYTES_MAX + (2 * self._limit_bytes if self._headed else 0):
            self._overlong = True
            self._lost()

    def eof_received(self) -> None:
        self._ended()

    def connection_lost(self, exc: Exception | None) -> None:
        # With TLS 1.3 a backend refuses a certificate only after the handshake.
        if isinstance(exc, ssl.SSLError) and self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(exc)
        self._ended(lost=exc is not None)

    def _ended(self, *, lost: bool = False) -> None:
        """No more bytes come. That ends an answer which does not tell its own end."""
        if self._headed and not self._framed and not lost:
            self._answered()
        self._lost()

    def _lost(self) -> None:
        self._abort()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(Overlong() if self._overlong else Unheard())

    def _answered(self, *, whole: bool = True) -> None:
        if self._waiter is not None and not self._waiter.done():
            assert self._parser is not None
            body, limit_bytes = b"".join(self._pieces), self._limit_bytes
            whole = whole and len(body) <= limit_bytes
            answer = Answer(self._parser.get_status_code(), body[:limit_bytes], whole)
            self._waiter.set_result(answer)

    def _forget(self) -> None:
        """Drop the answer: the parser and this object refer to each other and would keep it."""
        self._waiter = self._parser = None
        self._pieces = []

    def _abort(self) -> None:
        self.open = False
        if self._transport is not None:
            self._transport.abort()

    # The parser -------------------------------------------------------------------------------

    # An exception from one of these ends the parsing of the read.

    def on_message_begin(self) -> None:
        if self._waiter is None or self._waiter.done():  # after the answer: nobody asked
            raise Unheard

    def on_header(self, name: bytes, value: bytes) -> None:
        self._lines += 1
        if self._lines > LINES_MAX:
            self._no_end()
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._framed = True

    def on_headers_complete(self) -> None:
        self._headed = True

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)
        self._body_bytes += len(body)
        if len(self._pieces) > PIECES_MAX:
            self._no_end()

    def on_message_complete(self) -> None:
        assert self._parser is not None
        if 100 <= self._parser.get_status_code() < 200:  # the answer is still to come
            self._framed = self._headed = False
            self._interim += 1
            if self._interim > INTERIM_MAX:
                self._no_end()
            return
        if not self._parser.should_keep_alive():
            self.open = False
        self._answered()

    def _no_end(self) -> None:
        self._overlong = True
        raise Overlong
