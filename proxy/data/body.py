"""The body of one request while it arrives, with a declared length or in chunks.

A long one is read from the socket straight into its buffer. Usually the loop copies a read out of
its own buffer, and the body copies it again: with 1 MB that is a tenth of a request's CPU. So while
a long body comes, its landing is the protocol of the connection.
"""

import asyncio
from io import BytesIO
from typing import Final, cast

from penstock.balancing.outliers.crashing_requests import Mark, Marking
from penstock.proxy.wire import native
from penstock.proxy.wire.dechunk import Dechunker

# With less to come, the change of protocols costs as much as it saves.
LANDED_BYTES_MIN: Final = 131_072
SPILL_BYTES: Final = 65_536

_NONE: Final = memoryview(b"")


class Body:
    """The part of a body that has arrived. `length` is None when it comes in chunks."""

    def __init__(self, path: bytes, length: int | None) -> None:
        """`path`: of its request, which is a part of its mark."""
        self._length = length
        self._dechunker = Dechunker() if length is None else None
        self._data: BytesIO | native.Buffer = (
            native.Buffer(length) if native.AVAILABLE and length is not None else BytesIO()
        )
        # A long body is hashed as it comes: all at once it would hold up others.
        self._marking = Marking(path)

    def __len__(self) -> int:
        return self._data.tell()

    @property
    def chunked(self) -> bool:
        return self._dechunker is not None

    def split(self, data: bytes) -> tuple[bytes, bytes]:
        """Split a read: (bytes of this body, bytes after its end). Raises MalformedChunks.

        llhttp does not say where the last chunk ended. If bytes followed it, the second part is the
        whole read.
        """
        if self._dechunker is not None:
            piece = self._dechunker.feed(data)
            return piece, data if self._dechunker.surplus else b""
        assert self._length is not None
        left = self._length - self._data.tell()
        if len(data) <= left:
            return data, b""  # compiled code copies slices, even of all
        return data[:left], data[left:]

    def add(self, piece: bytes) -> None:
        self._data.write(piece)
        self._marking.add(piece)

    @property
    def landing_bytes(self) -> int:
        """How much can still be read straight into this body."""
        if not native.AVAILABLE or self._length is None:
            return 0
        return self._length - self._data.tell()

    def room(self) -> memoryview:
        """Where the next read may go, at most 256 KiB of it. Raises MemoryError."""
        return memoryview(cast(native.Buffer, self._data))

    def land(self, piece: memoryview) -> None:
        cast(native.Buffer, self._data).landed(len(piece))
        self._marking.add(piece)

    @property
    def complete(self) -> bool:
        if self._dechunker is not None:
            return self._dechunker.complete
        return self._data.tell() == self._length

    def whole(self) -> tuple[bytes, Mark]:
        """The whole body, without a copy, and its mark. Call it once: a Buffer keeps nothing."""
        return self._data.getvalue(), self._marking.mark


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
