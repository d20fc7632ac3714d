"""A client that keeps an answer's framing visible and can leave in any way.

HTTP libraries hide whether a body ended or was cut; here that is the question.
"""

import asyncio
import socket
import struct
from enum import Enum
from time import monotonic
from typing import Final, cast

import httptools

_LINGER_RESET: Final = struct.pack("ii", 1, 0)


class Way(Enum):
    """How a client leaves."""

    CLOSE = "FIN"
    RESET = "RST"
    HALF = "half-close"


class Answer:
    """One answer as far as it came."""

    __slots__ = ("body", "ended", "first_s", "headers", "status")

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.ended = False  # by its own framing
        self.first_s: float | None = None


class ClientConnection(asyncio.Protocol):
    """One connection to the proxy, for one request after the other."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = cast(asyncio.Transport, None)
        self._parser = httptools.HttpResponseParser(self)
        self._answer = Answer()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self.open = True

    @classmethod
    async def dial(cls, port: int) -> "ClientConnection":
        _, connection = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return connection

    async def ask(self, request: bytes) -> Answer:
        """Send a request; returns when its answer has ended or the connection has."""
        self.send(request)
        await self.ended()
        return self._answer

    async def ended(self) -> None:
        """Wait until the answer has ended, or the connection has."""
        await asyncio.shield(self._over)

    def send(self, request: bytes) -> None:
        """Send a request without waiting for what comes."""
        self._answer = Answer()
        self._over = self._loop.create_future()
        if self.open:
            self._transport.write(request)
        else:
            self._over.set_result(None)

    @property
    def answer(self) -> Answer:
        return self._answer

    @property
    def reusable(self) -> bool:
        return self.open and self._answer.ended and self._parser.should_keep_alive()

    def leave(self, way: Way) -> None:
        """Leave; after a half-close the proxy is who closes."""
        if not self.open:
            return
        if way is Way.HALF:
            self._transport.write_eof()
            return
        if way is Way.RESET:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
        self._transport.abort()

    async def gone(self) -> None:
        """Wait until the connection is gone."""
        await asyncio.shield(self._gone)

    # What the loop and the parser call.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._answer.ended = False
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        self._gone.set_result(None)
        if not self._over.done():
            self._over.set_result(None)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._answer.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._answer.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._answer.first_s is None:
            self._answer.first_s = monotonic()
        self._answer.body += body

    def on_message_complete(self) -> None:
        self._answer.ended = True
        if not self._over.done():
            self._over.set_result(None)
