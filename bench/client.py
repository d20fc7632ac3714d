"""The client of the benchmarks: a connection that keeps an answer's framing visible, and a pool.

HTTP libraries hide whether a body ended or was cut, and when its parts came; here that is the
question. What is not measured is asked with `call`, which blocks. `scraped` asks for /metrics
beside a load once a second, as Prometheus would do.
"""

import asyncio
import contextlib
import http.client
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from threading import Event, Thread
from time import monotonic
from types import MappingProxyType
from typing import Final, Self, cast
from urllib.parse import urlsplit

import httptools

from penstock.bench.report import BenchError

HOST: Final = "127.0.0.1"
METRICS: Final = "/metrics"
EVERY_S: Final = 1.0
_LINGER_RESET: Final = struct.pack("ii", 1, 0)


def get(path: str) -> bytes:
    """A request without a body, as it goes on the wire."""
    return b"GET %b HTTP/1.1\r\nhost: %b\r\n\r\n" % (path.encode(), HOST.encode())


def post(path: str, content: bytes, headers: bytes = b"") -> bytes:
    """A request with JSON in its body; each of the other headers ends with CRLF."""
    return (
        b"POST %b HTTP/1.1\r\nhost: bench\r\n%bcontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (path.encode(), headers, len(content), content)
    )


class Way(Enum):
    CLOSE = "FIN"
    RESET = "RST"
    HALF = "half-close"


class Answer:
    """One answer as far as it came."""

    __slots__ = ("_parser", "body", "ended", "first_s", "headers", "kept", "reads", "status")

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.ended = False  # by its own framing
        self.kept = False  # its connection may be used again
        self.first_s = 0.0
        """When its first byte was read."""
        self.reads: list[tuple[float, int]] = []
        """When a part of the body was read, and how long the body was then."""

    def feed(self, data: bytes, now_s: float = 0.0) -> bool:
        """More of it. Returns whether that is HTTP."""
        before = len(self.body)
        self.first_s = self.first_s or now_s
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.ended = False
            return False
        finally:
            if len(self.body) > before:
                self.reads.append((now_s, len(self.body)))
        return True

    @property
    def fault(self) -> str:
        """Why it cannot be whole; empty when it may be."""
        if self.status != 200:
            return f"status {self.status}" if self.status else "no answer"
        return "" if self.ended else "cut"

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.ended = True
        self.kept = self._parser.should_keep_alive()  # known now only: the parser forgets it


class ClientConnection(asyncio.Protocol):
    """One connection, for one request after the other."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = cast(asyncio.Transport, None)
        self.answer = Answer()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self.open = True

    @classmethod
    async def dial(cls, port: int, host: str = HOST) -> "ClientConnection":
        _, connection = await asyncio.get_running_loop().create_connection(cls, host, port)
        return connection

    async def ask(self, request: bytes) -> Answer:
        """Send a request; returns when its answer has ended or the connection has."""
        self.send(request)
        await self.ended()
        return self.answer

    async def ended(self) -> None:
        """Wait until the answer has ended, or the connection has."""
        await asyncio.shield(self._over)

    def send(self, request: bytes) -> None:
        """Send a request without waiting for what comes."""
        self.answer = Answer()
        self._over = self._loop.create_future()
        if self.open:
            self._transport.write(request)
        else:
            self._over.set_result(None)

    def go_on(self, data: bytes) -> None:
        self._transport.write(data)

    @property
    def reusable(self) -> bool:
        return self.open and self.answer.ended and self.answer.kept

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
        await asyncio.shield(self._gone)

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if not self.answer.feed(data, monotonic()):
            self._transport.abort()
        elif self.answer.ended and not self._over.done():
            self._over.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        self._gone.set_result(None)
        if not self._over.done():
            self._over.set_result(None)


class Clients:
    """Connections to one server, each kept as long as it can be used again."""

    def __init__(self, port: int, host: str = HOST) -> None:
        self._port = port
        self._host = host
        self._idle: list[ClientConnection] = []

    @classmethod
    def of(cls, url: str) -> Self:
        """Connections to the server of a URL. Raises BenchError."""
        return cls(*address(url))

    async def take(self) -> ClientConnection:
        """An idle connection, or a new one. Raises OSError."""
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                return connection
        return await ClientConnection.dial(self._port, self._host)

    def give(self, connection: ClientConnection) -> None:
        """Take a connection back, which ends unless it can be used again."""
        if connection.reusable:
            self._idle.append(connection)
        else:
            connection.leave(Way.CLOSE)

    async def ask(self, request: bytes) -> Answer:
        """Send a request on any connection; returns when its answer or the connection ended."""
        connection = await self.take()
        try:
            return await connection.ask(request)
        finally:
            self.give(connection)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().leave(Way.CLOSE)


def address(url: str) -> tuple[int, str]:
    """The port and host of a URL. Raises BenchError."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise BenchError(f"{url}: not a URL of the form http://HOST:PORT")
    return parts.port or 80, parts.hostname


def call(
    port: int,
    method: str,
    path: str,
    content: bytes | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
    *,
    host: str = HOST,
    within_s: float = 10.0,
) -> tuple[int, bytes]:
    """Ask once and wait: the status and the body. Raises OSError."""
    connection = http.client.HTTPConnection(host, port, timeout=within_s)
    try:
        connection.request(method, path, content, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except http.client.HTTPException as error:
        raise ConnectionError(repr(error)) from None
    finally:
        connection.close()


def samples(text: bytes | bytearray) -> dict[str, float]:
    """Every sample by its name and labels, as they are spelt there."""
    pairs = (line.rpartition(" ") for line in text.decode().splitlines() if line[:1] != "#")
    return {name: float(value) for name, _, value in pairs}


@contextmanager
def scraped(port: int | None) -> Iterator[None]:
    """Scrape this port meanwhile; None has no metrics."""
    if port is None:
        yield
        return
    over = Event()

    def scrape() -> None:
        while not over.wait(EVERY_S):
            # What the peer does to its streams meanwhile is what counts.
            with contextlib.suppress(OSError):
                call(port, "GET", METRICS, within_s=5.0)

    thread = Thread(target=scrape, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
