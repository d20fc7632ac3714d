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
        self._reserved: socket.socket | None = None  # bound: nobody is given its port
        self._accepted: set[asyncio.Task[None]] = set()  # and not made known yet
        self.host = "127.0.0.1"
        self.port = 0

    def open(self, host: str, port: int) -> None:
        """Listen; port 0 takes a free one."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._reserved = _bound(family, host, port)
        self.host, self.port = host, self._reserved.getsockname()[1]
        try:
            self.reopen()
        except OSError:  # somebody listens there
            self._reserved.close()
            raise

    def reopen(self) -> None:
        """Listen again: connections succeed from the moment this returns."""
        if self._sock is not None:
            return
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        sock = _bound(family, self.host, self.port)
        try:
            sock.listen(BACKLOG)
        except OSError:
            sock.close()
            raise
        # Accepted sockets inherit it; asyncio sets it on none that was made for it.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        self._sock = sock
        asyncio.get_running_loop().add_reader(sock, self._accept, sock)

    def close(self) -> None:
        """Refuse connections from now on; those that are open stay."""
        if self._sock is not None:
            asyncio.get_running_loop().remove_reader(self._sock)
            self._sock.close()
            self._sock = None

    async def closed(self) -> None:
        """Close, give the port back, and wait until a protocol knows every connection."""
        self.close()
        if self._reserved is not None:
            self._reserved.close()
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


def _bound(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    """A socket on that address, which does not listen: connections are refused.

    Raises OSError where somebody listens there already.
    """
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock
