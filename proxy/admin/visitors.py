"""The connections to the admin port: a limited number, whatever they do.

Everybody who reaches the port may open connections before a token is checked, and each takes a file
descriptor that probes and clients need. So there are at most `VISITORS_MAX`. For a new one a
connection of the address with the most is closed, its longest idle one. Where all of these ask, it
is the one that has asked longest: who only asks for `/livez` has its answer by then. A head that
was begun must be complete soon.
"""

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Callable
from typing import Final, cast

from penstock.health.pace import Later, Timer
from penstock.proxy.wire.client_address import party_of
from penstock.proxy.wire.sockets import BACKLOG, Accepting

VISITORS_MAX: Final = 64
HEAD_S: Final = 5.0
REQUEST_S: Final = 60.0


class Visitors:
    """All connections, each in front of a protocol made by `handler`. `later`: a loop's call."""

    def __init__(self, handler: Callable[[], asyncio.Protocol], later: Later) -> None:
        self._handler = handler
        self._later = later
        self._all: dict[asyncio.Protocol, Visitor] = {}  # by the protocol behind
        self._idle: dict[Visitor, None] = {}  # the longest idle first
        self._asking: dict[Visitor, None] = {}  # the longest asking first, without those that stay

    def __call__(self) -> asyncio.Protocol:
        """The protocol of a new connection."""
        return Visitor(self, self._later)

    def begin(self, handler: asyncio.Protocol) -> None:
        """The head of a request has come."""
        visitor = self._all.get(handler)
        if visitor is not None:
            self._idle.pop(visitor, None)
            self._asking[visitor] = None
            visitor.expect(REQUEST_S)

    def stay(self, handler: asyncio.Protocol) -> None:
        """Its answer goes on for as long as whoever sends it allows."""
        visitor = self._all.get(handler)
        if visitor is not None:
            self._asking.pop(visitor, None)
            visitor.relax()

    def end(self, handler: asyncio.Protocol) -> None:
        """Its answer is complete. Sending it is up to the visitor."""
        visitor = self._all.get(handler)
        if visitor is not None:
            self._asking.pop(visitor, None)
            self._idle[visitor] = None
            visitor.relax()

    # What visitors tell ---------------------------------------------------------------------

    def enter(self, visitor: "Visitor") -> asyncio.Protocol | None:
        """The protocol behind a new connection. None when there is no place."""
        if len(self._all) >= VISITORS_MAX:
            loser = self._loser()
            if loser is None:
                return None
            loser.leave()
        handler = self._handler()
        self._all[handler] = visitor
        self._idle[visitor] = None
        return handler

    def left(self, visitor: "Visitor", handler: asyncio.Protocol) -> None:
        self._all.pop(handler, None)
        self._idle.pop(visitor, None)
        self._asking.pop(visitor, None)

    def _loser(self) -> "Visitor | None":
        """Who gives way to a new one. None: all stay."""
        able = [*self._idle, *self._asking]
        held = Counter([each.party for each in able])
        most = max(held.values(), default=0)
        return next((each for each in able if held[each.party] == most), None)


_NOBODY: Final = asyncio.Protocol()


class Visitor(asyncio.Protocol):
    """One connection. All its events are passed on."""

    def __init__(self, visitors: Visitors, later: Later) -> None:
        self._visitors = visitors
        self._later = later
        self._timer: Timer | None = None
        self._handler = _NOBODY
        self._transport = cast(asyncio.Transport, None)
        self.party = ""  # whom its address stands for

    def expect(self, time_s: float) -> None:
        """Close the connection unless the expected bytes come in this time."""
        self.relax()
        self._timer = self._later(time_s, self.leave)

    def relax(self) -> None:
        """Expect nothing now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def leave(self) -> None:
        """End the connection. Its place is free at once."""
        self.relax()
        self._visitors.left(self, self._handler)
        self._transport.abort()

    # What the loop calls --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.party = party_of(peer[0]) if peer else ""
        handler = self._visitors.enter(self)
        if handler is None:
            self._transport.abort()
            return
        self._handler = handler
        self.expect(HEAD_S)
        self._handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._timer is None and self._handler is not _NOBODY:
            self.expect(HEAD_S)
        self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        return self._handler.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.relax()
        self._visitors.left(self, self._handler)
        self._handler.connection_lost(exc)
        self._handler = _NOBODY  # break the reference cycle

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()


# How many may be accepted in one turn of the loop, before closed ones have left.
ACCEPTED_MAX: Final = 32


class Door:
    """The listening socket: who connects is accepted soon, whoever else connects.

    When the kernel's queue is full, it drops a client's first packet, which is repeated after a
    second: too late for a probe of Kubernetes. So the queue is long, and many are accepted in a
    turn of the loop.
    """

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
