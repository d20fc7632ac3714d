"""A raw client of the data port: what it sends is sent as it is, and answers are read by hand."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import orjson

from penstock.bench.sim.server import SimServer
from tests.e2e.process import Penstock

KEY, PROMPT = "sk-canary-7f3a", "canary prompt 91c2"
HOST = b"Host: penstock\r\n"
SECRET = b"Authorization: Bearer " + KEY.encode() + b"\r\n"
BODY = orjson.dumps({"model": "sim-model", "prompt": PROMPT, "max_tokens": 4})


def request(
    *fields: bytes,
    path: bytes = b"/v1/completions",
    method: bytes = b"POST",
    body: bytes | None = BODY,
    host: bytes = HOST,
) -> bytes:
    """A request with these header lines; with a length unless they hold the framing."""
    lines = [b"Content-Type: application/json\r\n", *(field + b"\r\n" for field in fields)]
    framed = any(b"content-length" in field.lower() for field in fields)
    framed = framed or any(b"transfer-encoding" in field.lower() for field in fields)
    if body is not None and not framed:
        lines.append(b"Content-Length: %d\r\n" % len(body))
    head = method + b" " + path + b" HTTP/1.1\r\n" + host + SECRET
    return head + b"".join(lines) + b"\r\n" + (body or b"")


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def code(self) -> Any:
        return self.json["error"]["code"]


class Client:
    """A raw connection to the data port."""

    opened: ClassVar[list["Client"]] = []

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.opened.append(self)

    @classmethod
    async def open(cls, penstock: Penstock, data: bytes = b"") -> "Client":
        client = cls(*await asyncio.open_connection("127.0.0.1", penstock.port))
        client.send(data)
        return client

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def answer(self, within_s: float = 5.0) -> Answer:
        """The next answer, which must tell its length."""
        async with asyncio.timeout(within_s):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            line, *fields = head[:-4].split("\r\n")
            headers = {n.lower(): v.strip() for n, _, v in (f.partition(":") for f in fields)}
            status = int(line.split(" ")[1])
            body = b""
            if status >= 200 and status != 204:
                body = await self._reader.readexactly(int(headers["content-length"]))
            return Answer(status, headers, body)

    async def until(self, sign: bytes, within_s: float = 5.0) -> None:
        """Wait until this has come."""
        async with asyncio.timeout(within_s):
            await self._reader.readuntil(sign)

    async def rest(self, within_s: float = 1.0) -> bytes | None:
        """What came until the connection was closed; None when it is still open."""
        try:
            return await asyncio.wait_for(self._reader.read(), within_s)
        except TimeoutError:
            return None
        except ConnectionResetError:
            return b""

    def close(self, *, reset: bool = False) -> None:
        if self in self.opened:
            self.opened.remove(self)
        if reset:
            sock: socket.socket = self._writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


Guard = Callable[..., Awaitable[tuple[SimServer, Penstock]]]


def numbered(number: int, **options: Any) -> bytes:
    body = {"prompt": f"{PROMPT} {number}", "max_tokens": 6, **options}
    return request(body=orjson.dumps(body))


class RawClient:
    """A connection that is read by hand, so that bytes before a reset are not lost."""

    opened: ClassVar[list["RawClient"]] = []

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.was_reset = False
        self._loop = asyncio.get_running_loop()
        self._ahead = b""
        self.opened.append(self)

    @classmethod
    async def open(cls, port: int, data: bytes = b"", receive_bytes: int = 0) -> "RawClient":
        sock = socket.socket()
        sock.setblocking(False)
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client = cls(sock)
        await client._loop.sock_connect(sock, ("127.0.0.1", port))
        await client.send(data)
        return client

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.sock, data)

    async def until(self, marker: bytes, times: int = 1) -> bytes:
        """All bytes up to the end of the marker's nth occurrence."""
        async with asyncio.timeout(5):
            while self._ahead.count(marker) < times:
                more = await self._loop.sock_recv(self.sock, 65_536)
                assert more, f"closed after {self._ahead!r}"
                self._ahead += more
        parts = self._ahead.split(marker, times)
        self._ahead = parts.pop()
        return marker.join(parts) + marker

    async def rest(self, *, pause_s: float = 0.0) -> bytes:
        """All bytes until the end of the stream or of the connection."""
        got, self._ahead = self._ahead, b""
        async with asyncio.timeout(20):
            try:
                while more := await self._loop.sock_recv(self.sock, 65_536):
                    got += more
                    await asyncio.sleep(pause_s)
                    if pause_s and got.endswith(b"\r\n0\r\n\r\n"):
                        break
            except ConnectionResetError:
                self.was_reset = True
        return got

    async def silent(self) -> bool:
        """Whether nothing comes for a while."""
        try:
            await asyncio.wait_for(self._loop.sock_recv(self.sock, 1), 0.03)
        except TimeoutError:
            return not self._ahead
        return False

    # Ways to leave.

    def close(self) -> None:
        self.sock.close()

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def half_close(self) -> None:
        """Say that no more will be sent; a client that exits looks the same."""
        self.sock.shutdown(socket.SHUT_WR)
