"""TLS around the real process: a raw client, and what ends TLS in front of a simulated server."""

import asyncio
import contextlib
import os
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any, ClassVar

import orjson

from tests.certificates import client_context, server_context
from tests.e2e.process import Penstock
from tests.e2e.raw_backend import stop_listening


class TlsClient:
    """A blocking TLS connection, driven from threads, to which a bare FIN is no end."""

    opened: ClassVar[list["TlsClient"]] = []

    def __init__(
        self,
        penstock: Penstock,
        *,
        receive_bytes: int = 0,
        context: ssl.SSLContext | None = None,
        session: ssl.SSLSession | None = None,
    ) -> None:
        self.tcp = socket.socket()
        if receive_bytes:
            self.tcp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.tcp.settimeout(10)
        self.tcp.connect(("127.0.0.1", penstock.port))
        self.sock = (context or client_context()).wrap_socket(
            self.tcp, server_hostname="localhost", suppress_ragged_eofs=False, session=session
        )
        self.opened.append(self)

    @classmethod
    async def open(cls, penstock: Penstock, data: bytes = b"", **options: Any) -> "TlsClient":
        client = await asyncio.to_thread(lambda: cls(penstock, **options))
        if data:
            await asyncio.to_thread(client.sock.sendall, data)
        return client

    async def send(self, data: bytes) -> None:
        await asyncio.to_thread(self.sock.sendall, data)

    async def until(self, marker: bytes) -> bytes:
        got = b""
        while marker not in got:
            more = await asyncio.to_thread(self.sock.recv, 65_536)
            assert more, got
            got += more
        return got

    async def rest(self) -> tuple[bytes, str]:
        """All that came, and how it ended: `told` (close_notify), `cut` or `reset`."""
        got = b""
        try:
            while more := await asyncio.to_thread(self.sock.recv, 65_536):
                got += more
        except ssl.SSLEOFError as error:  # a reset comes without a reason
            return got, "cut" if error.reason else "reset"
        except ConnectionResetError:
            return got, "reset"
        return got, "told"

    # Ways to leave, with and without a word.

    def close(self) -> None:
        self.sock.close()

    def say_and_close(self) -> None:
        self.sock.setblocking(False)
        with contextlib.suppress(OSError):
            self.sock.unwrap()
        self.sock.close()

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def half_close(self) -> None:
        """The FIN of a client that exits, and nothing else."""
        with socket.socket(fileno=os.dup(self.sock.fileno())) as same:
            same.shutdown(socket.SHUT_WR)


class TlsFront:
    """Ends TLS before a plain server; how the server ends a connection is passed on.

    An end of the server's becomes a FIN without close_notify, or with it if `tells`.
    """

    def __init__(
        self,
        to: int,
        *names: str,
        port: int = 0,
        tells: bool = False,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """`context`: instead of one that asks for no certificate."""
        self._to = to
        self._tells = tells
        self._context = context or server_context(*names)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = port

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    async def start(self) -> "TlsFront":
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, ssl=self._context
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        assert self._server is not None
        await stop_listening(self._server)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        end: Callable[[], None] = writer.close if self._tells else writer.transport.abort
        try:
            inner, to = await asyncio.open_connection("127.0.0.1", self._to)
            up = asyncio.create_task(pump(reader, to, to.transport.abort))
            try:
                await pump(inner, writer, end)
            finally:
                up.cancel()
                to.transport.abort()
        except OSError:  # the server is gone
            writer.transport.abort()
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._tasks.discard(task)


async def pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, end: Callable[[], None]
) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    end()


def post(path: str, body: dict[str, object], *fields: bytes, http: bytes = b"1.1") -> bytes:
    raw = orjson.dumps(body)
    lines = b"".join(field + b"\r\n" for field in fields)
    head = b"POST %b HTTP/%b\r\nHost: x\r\n" % (path.encode(), http)
    framed = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(raw)
    return head + framed + lines + b"\r\n" + raw
