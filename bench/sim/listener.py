"""The listening socket, which a fault can close and open again on the same port."""

import asyncio
import socket
from collections.abc import Callable
from typing import Final

BACKLOG: Final = 2_048


class Listener:
    """Accepts connections for a protocol factory while it is open."""

    def __init__(self, factory: Callable[[], asyncio.Protocol]) -> None:
        self._factory = factory
        self._server: asyncio.Server | None = None
        self._opening: asyncio.Task[None] | None = None
        self._open = False
        self.host = "127.0.0.1"
        self.port = 0

    async def open(self, host: str, port: int) -> None:
        """Listen; port 0 takes a free one."""
        self.host, self.port = host, port
        self.reopen()
        assert self._opening is not None
        await self._opening

    def reopen(self) -> None:
        """Listen again: connections succeed from the moment this returns."""
        if self._open:
            return
        self._open = True
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        sock = socket.create_server((self.host, self.port), family=family, backlog=BACKLOG)
        # Accepted sockets inherit it; asyncio sets it on none that was made for it.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        self.port = sock.getsockname()[1]
        self._opening = asyncio.get_running_loop().create_task(self._accept(sock))

    def close(self) -> None:
        """Refuse connections from now on; those that are open stay."""
        self._open = False
        if self._server is not None:
            self._server.close()
            self._server = None

    async def closed(self) -> None:
        """Close, and wait until nothing of the socket is left."""
        self.close()
        if self._opening is not None:
            await self._opening

    async def _accept(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._factory, sock=sock, backlog=BACKLOG)
        if self._open and self._server is None:
            self._server = server
        else:  # closed again in the meantime
            server.close()
