"""Reads a long body from its client's socket straight into its buffer.

Usually the loop copies a read out of its own buffer, and the body copies it again: with 1 MB that
is a tenth of a request's CPU. So while a long body comes, its landing is the connection's protocol.
"""

import asyncio
from typing import Final

from penstock.proxy.data.body import Body

# With less to come, the change of protocols costs as much as it saves.
LANDED_BYTES_MIN: Final = 131_072
SPILL_BYTES: Final = 65_536

_NONE: Final = memoryview(b"")


class Landed(asyncio.Protocol):
    """A client's connection, as its landing sees it."""

    __slots__ = ()

    def landed(self, piece: memoryview) -> None:
        """This piece was read into the body."""


class Landing(asyncio.BufferedProtocol):
    """The protocol of a connection while a long body comes."""

    __slots__ = ("_body", "_connection", "_spills", "_view")

    def __init__(self, connection: Landed, body: Body) -> None:
        self._connection = connection
        self._body: Body | None = body
        self._view = _NONE
        self._spills = False

    def end(self) -> None:
        """Hold the body no longer. uvloop keeps a landing until its connection is lost."""
        self._body, self._view = None, _NONE

    def get_buffer(self, _size_hint: int) -> memoryview:
        """Where the next read goes. The loop calls this also before a read that finds nothing."""
        assert self._body is not None
        self._view = _NONE
        try:
            self._view = self._body.room()
        except MemoryError:  # read as usual: then the connection refuses the body
            self._view, self._spills = memoryview(bytearray(SPILL_BYTES)), True
        return self._view

    def buffer_updated(self, size_bytes: int) -> None:
        piece, self._view = self._view[:size_bytes], _NONE
        if self._spills:
            self._connection.data_received(bytes(piece))
        else:
            self._connection.landed(piece)

    def eof_received(self) -> None:
        self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()
