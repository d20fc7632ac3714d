"""The body of one request while it arrives, with a declared length or in chunks."""

from io import BytesIO

from penstock.proxy.wire.dechunk import Dechunker


class Body:
    """The part of a body that has arrived. `length` is None when it comes in chunks."""

    __slots__ = ("_data", "_dechunker", "_length")

    def __init__(self, length: int | None) -> None:
        self._length = length
        self._dechunker = Dechunker() if length is None else None
        self._data = BytesIO()

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
            return data, b""  # a slice, even a whole one, may be a copy
        return data[:left], data[left:]

    def add(self, piece: bytes) -> None:
        self._data.write(piece)

    @property
    def complete(self) -> bool:
        if self._dechunker is not None:
            return self._dechunker.complete
        return self._data.tell() == self._length

    def whole(self) -> bytes:
        """The whole body, without a copy: it is the buffer itself."""
        return self._data.getvalue()
