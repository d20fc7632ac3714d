"""The listening socket, which a fault can close and open again on the same port.

It accepts by itself: asyncio's own server, when it is closed between accepting a connection and
making its transport, forgets the connection and leaves it open (CPython 3.11, `Server._attach`).
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Final

BACKLOG: Final = 2_048
# Accepted in one turn of the loop, as asyncio would with a backlog of this many.
ACCEPTS_MAX: Final = 100
# Until it tries again when there are no descriptors left.
PAUSE_S: Final = 1.0


class Listener:
    """Accepts connections for a protocol factory while it is open."""

    def __init__(self, factory: Callable[[], asyncio.Protocol]) -> None:
        self._factory = factory
        self._sock: socket.socket | None = None
        self._accepted: set[asyncio.Task[None]] = set()  # and not made known yet
        self.host = "127.0.0.1"
        self.port = 0

    def open(self, host: str, port: int) -> None:
        """Listen; port 0 takes a free one."""
        self.host, self.port = host, port
        self.reopen()

    def reopen(self) -> None:
        """Listen again: connections succeed from the moment this returns."""
        if self._sock is not None:
            return
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        sock = socket.create_server((self.host, self.port), family=family, backlog=BACKLOG)
        # Accepted sockets inherit it; asyncio sets it on none that was made for it.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        self.port = sock.getsockname()[1]
        self._sock = sock
        asyncio.get_running_loop().add_reader(sock, self._accept, sock)

    def close(self) -> None:
        """Refuse connections from now on; those that are open stay."""
        if self._sock is not None:
            asyncio.get_running_loop().remove_reader(self._sock)
            self._sock.close()
            self._sock = None

    async def closed(self) -> None:
        """Close, and wait until every accepted connection is known to its protocol."""
        self.close()
        if self._accepted:
            await asyncio.wait(self._accepted)

    def _accept(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPTS_MAX):
            try:
                accepted, _ = sock.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:
                loop.remove_reader(sock)
                loop.call_later(PAUSE_S, self._resume, sock)
                return
            task = loop.create_task(self._connect(accepted))
            self._accepted.add(task)
            task.add_done_callback(self._accepted.discard)

    def _resume(self, sock: socket.socket) -> None:
        if sock is self._sock:
            asyncio.get_running_loop().add_reader(sock, self._accept, sock)

    async def _connect(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(self._factory, accepted)
