"""A raw connection to a simulated server."""

import asyncio
import json
import socket

from penstock.bench.sim.server import SimServer


class Client:
    """One raw connection, read so that bytes before a reset are not lost."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._ahead = b""
        self.was_reset = False

    @classmethod
    async def open(cls, server: SimServer) -> "Client":
        sock = socket.socket()
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", server.port))
        except OSError:
            sock.close()
            raise
        return cls(sock)

    async def post(self, path: str, body: object, *, close: bool = True) -> None:
        raw = json.dumps(body).encode()
        end = "Connection: close\r\n" if close else ""
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{end}"
        request = f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw
        await self._loop.sock_sendall(self._sock, request)

    async def until(self, marker: bytes, times: int = 1) -> bytes:
        """All bytes up to the end of the marker's nth occurrence."""
        async with asyncio.timeout(5):
            while self._ahead.count(marker) < times:
                more = await self._loop.sock_recv(self._sock, 65_536)
                assert more, f"closed after {self._ahead!r}"
                self._ahead += more
        parts = self._ahead.split(marker, times)
        self._ahead = parts.pop()
        return marker.join(parts) + marker

    async def rest(self) -> bytes:
        """All bytes until the server closes."""
        got, self._ahead = self._ahead, b""
        async with asyncio.timeout(5):
            try:
                while more := await self._loop.sock_recv(self._sock, 65_536):
                    got += more
            except ConnectionResetError:
                self.was_reset = True
        return got

    async def silent(self) -> bool:
        """Whether nothing comes for a while."""
        try:
            await asyncio.wait_for(self._loop.sock_recv(self._sock, 1), 0.03)
        except TimeoutError:
            return not self._ahead
        return False

    def leave(self) -> None:
        self._sock.close()
