"""An end of asyncio's servers that leaves no connection behind."""

import asyncio
import re
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Final

from tests.http.case import CLOSE, RESET, Step, Steps, echo


async def stop_listening(*servers: asyncio.Server) -> None:
    """Close them while clients still connect.

    `Server.close` alone between an accept and the making of its transport fails in `_attach`
    (Python 3.11). Nobody closes that transport then.
    """
    loop = asyncio.get_running_loop()
    for server in servers:
        for sock in server.sockets:
            loop.remove_reader(sock.fileno())
    await asyncio.sleep(0)  # what was accepted gets its transport
    for server in servers:
        server.close()


# What it does for one request: steps, and events to wait for between them.
Script = tuple[Step | asyncio.Event, ...]
LENGTH: Final = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.I)
_MODELS: Final = b'{"object":"list","data":[{"id":"%b","object":"model"}]}'


def answer(body: bytes, *fields: bytes, status: bytes = b"200 OK") -> bytes:
    """A plain answer with a length."""
    head = b"HTTP/1.1 " + status + b"\r\ncontent-type: application/json\r\n"
    lines = b"".join(field + b"\r\n" for field in fields)
    return head + lines + b"content-length: %d\r\n\r\n" % len(body) + body


class Connection:
    """What one connection brought; `mark`: where the current case begins."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.mark = 0
        self.probe = True  # until a request with an id comes


class RawBackend:
    """Listens on a port of its own; `script` is what it does for the requests to come."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._connections: list[Connection] = []
        self.script: list[Steps] = []
        self.early = False
        self.always: Callable[[bytes], Script] | None = None  # to whatever has no script
        self.url = ""
        self.model = b"sim-model"  # what it lists
        self.unmetered = False  # 404 on /metrics

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"

    async def stop(self) -> None:
        assert self._server is not None
        await stop_listening(self._server)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._tasks)

    def expect(self, *script: Steps, early: bool = False) -> None:
        """Forget what was, and answer so from now on."""
        for connection in self._connections:
            connection.mark = len(connection.received)
        self.script = list(script)
        self.early = early

    @property
    def arrived(self) -> list[bytes]:
        """What each connection brought since `expect`, probes apart."""
        kept = [each for each in self._connections if not each.probe]
        return [bytes(each.received[each.mark :]) for each in kept if each.received[each.mark :]]

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.create_task(self._talk(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        except (OSError, EOFError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection()
        self._connections.append(connection)
        received = connection.received
        start = 0  # of the request that is awaited
        while True:
            while (end := received.find(b"\r\n\r\n", start)) < 0:
                received += await self._read(reader)
            head = bytes(received[start : end + 4])
            if b"\r\nx-request-id: " not in head and connection.probe:
                missing = self.unmetered and head.startswith(b"GET /metrics ")
                models = answer(_MODELS % self.model)
                writer.write(answer(b"", status=b"404 Not Found") if missing else models)
                start = end + 4
                continue
            connection.probe = False
            match = LENGTH.search(head)
            whole = end + 4 + (int(match[1]) if match else 0)
            while len(received) < whole and not self.early:
                received += await self._read(reader)
            steps: Script | None = self.script.pop(0) if self.script else None
            if steps is None and self.always is not None:
                steps = self.always(bytes(received[start:whole]))
            if steps is None:
                while len(received) < whole:
                    received += await self._read(reader)
                writer.write(answer(echo(bytes(received[end + 4 : whole]))))
            elif not await self._play(steps, writer):
                return
            start = whole

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        data = await reader.read(65_536)
        if not data:
            raise EOFError
        return data

    async def _play(self, steps: Script, writer: asyncio.StreamWriter) -> bool:
        """Do what the script says; False when that ends the connection."""
        for step in steps:
            if isinstance(step, bytes):
                writer.write(step)
            elif isinstance(step, str):
                await writer.drain()
                await finish(writer, step)
                return False
            elif isinstance(step, asyncio.Event):
                await step.wait()
            else:
                await asyncio.sleep(step)
        return True


async def finish(writer: asyncio.StreamWriter, how: str) -> None:
    """Close a connection with a FIN or with a reset."""
    if how == RESET:
        sock: socket.socket = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    else:
        assert how == CLOSE
        writer.close()
        await writer.wait_closed()


RawBackends = Callable[..., Awaitable[list[RawBackend]]]
