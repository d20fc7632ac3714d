"""Who is connected to the admin port: a bounded number, whatever they do there.

Anybody who reaches the port may open connections, before any token is looked at, and each takes a
descriptor that probes and clients need. So there are `VISITORS_MAX`; who asks nothing gives way to
who comes, the longest idle first, and a head that was begun must be whole soon.
"""

import asyncio
from collections.abc import Callable
from typing import Final, cast

from health.places import Later, Timer

VISITORS_MAX: Final = 64
# Accepted in one turn of the loop, before those who give way have left.
BACKLOG: Final = 32
HEAD_S: Final = 5.0
REQUEST_S: Final = 60.0


class Visitors:
    """The connections, each before a protocol that `handler` makes. `later`: a loop's."""

    def __init__(self, handler: Callable[[], asyncio.Protocol], later: Later) -> None:
        self._handler = handler
        self._later = later
        self._all: dict[asyncio.Protocol, Visitor] = {}  # by what handles it
        self._idle: dict[Visitor, None] = {}  # the longest idle first

    def __len__(self) -> int:
        return len(self._all)

    def __call__(self) -> asyncio.Protocol:
        """The protocol of a new connection."""
        return Visitor(self, self._later)

    def begin(self, handler: asyncio.Protocol) -> None:
        """A request's head is here."""
        visitor = self._all.get(handler)
        if visitor is not None:
            self._idle.pop(visitor, None)
            visitor.expect(REQUEST_S)

    def end(self, handler: asyncio.Protocol) -> None:
        """Its answer is known; whether that is read is the visitor's affair."""
        visitor = self._all.get(handler)
        if visitor is not None:
            self._idle[visitor] = None
            visitor.relax()

    # What visitors tell ---------------------------------------------------------------------

    def enter(self, visitor: "Visitor") -> asyncio.Protocol | None:
        """What handles it; None where there is no place."""
        if len(self._all) >= VISITORS_MAX:
            if not self._idle:
                return None
            next(iter(self._idle)).leave()
        handler = self._handler()
        self._all[handler] = visitor
        self._idle[visitor] = None
        return handler

    def left(self, visitor: "Visitor", handler: asyncio.Protocol) -> None:
        self._all.pop(handler, None)
        self._idle.pop(visitor, None)


class Visitor(asyncio.Protocol):
    """One connection: all that happens to it is passed on."""

    def __init__(self, visitors: Visitors, later: Later) -> None:
        self._visitors = visitors
        self._later = later
        self._timer: Timer | None = None
        self._handler: asyncio.Protocol | None = None
        self._transport = cast(asyncio.Transport, None)

    def expect(self, time_s: float) -> None:
        """The connection ends unless what is expected comes in this time."""
        self.relax()
        self._timer = self._later(time_s, self.leave)

    def relax(self) -> None:
        """Nothing is expected of it now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def leave(self) -> None:
        """End the connection; its place is free at once."""
        self.relax()
        if self._handler is not None:
            self._visitors.left(self, self._handler)
        self._transport.abort()

    # What the loop calls --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._handler = self._visitors.enter(self)
        if self._handler is None:
            self._transport.abort()
            return
        self.expect(HEAD_S)
        self._handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._handler is None:
            return
        if self._timer is None:
            self.expect(HEAD_S)
        self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        return self._handler.eof_received() if self._handler is not None else None

    def connection_lost(self, exc: Exception | None) -> None:
        self.relax()
        if self._handler is not None:
            self._visitors.left(self, self._handler)
            self._handler.connection_lost(exc)
            self._handler = None  # they know each other

    def pause_writing(self) -> None:
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        if self._handler is not None:
            self._handler.resume_writing()
