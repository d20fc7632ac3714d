"""Accepts what waits in a listening socket behind the connection that the loop has accepted.

uvloop accepts one connection in a turn of its loop. While turns are long, new clients would wait
for seconds behind whoever only connects.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Final

# How many connections wait in a socket until they are accepted.
BACKLOG: Final = 4_096


class Accepting:
    """The connections that were accepted and that their protocols do not know yet."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, protocol: Callable[[], asyncio.Protocol]
    ) -> None:
        """`protocol` makes the protocol of a connection."""
        self._loop = loop
        self._protocol = protocol
        self._accepted: set[asyncio.Task[object]] = set()

    def accept(self, listening: socket.socket, most: int) -> None:
        """Accept those that wait. At most so many are not known yet, which takes some turns."""
        for _ in range(most - len(self._accepted)):
            try:
                sock, _ = listening.accept()
            except OSError:  # nobody waits, or there are no descriptors: the loop sees to that
                return
            sock.setblocking(False)
            task = self._loop.create_task(self._connect(sock))
            self._accepted.add(task)
            task.add_done_callback(self._accepted.discard)

    async def known(self) -> None:
        """Return when all that were accepted are known."""
        if self._accepted:
            await asyncio.wait(self._accepted)

    async def _connect(self, sock: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol, sock)
        except OSError:  # its client has left already
            sock.close()
