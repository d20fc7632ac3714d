"""The listening socket of the admin port: who connects is accepted soon, whoever else connects.

When the kernel's queue is full, it drops a client's first packet. The client repeats that after a
second, and a probe that Kubernetes sends would be too late. So the queue is long, and many are
accepted in a turn of the loop.
"""

import asyncio
import os
import socket
from typing import Final

from penstock.proxy.admin.visitors import Visitors
from penstock.proxy.wire.sockets import BACKLOG, Accepting

# How many may be accepted in one turn of the loop, before closed ones have left.
ACCEPTED_MAX: Final = 32


class Door:
    """Lets `visitors` in."""

    def __init__(self, loop: asyncio.AbstractEventLoop, visitors: Visitors) -> None:
        self._loop = loop
        self._visitors = visitors
        self._others = Accepting(loop, visitors)
        self._server: asyncio.Server | None = None
        self._listening: list[socket.socket] = []

    async def open(self, host: str, port: int) -> int:
        """Listen. Returns the port. Raises OSError."""
        # asyncio accepts in one turn as many as the queue is said to hold, uvloop one.
        server = await self._loop.create_server(self._visitor, host, port, backlog=1)
        self._server = server
        for each in server.sockets:
            listening = socket.socket(fileno=os.dup(each.fileno()))
            listening.setblocking(False)
            listening.listen(BACKLOG)
            self._listening.append(listening)
        return int(server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Let nobody in any more."""
        listening, self._listening = self._listening, []
        for each in listening:
            each.close()
        if self._server is not None:
            self._server.close()
        await self._others.known()

    def _visitor(self) -> asyncio.Protocol:
        """The protocol of a connection that the loop has accepted."""
        for each in self._listening:
            self._others.accept(each, ACCEPTED_MAX)
        return self._visitors()
