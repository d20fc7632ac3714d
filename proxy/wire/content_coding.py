"""Takes the content coding off a request body, a piece at a time.

Servers of models read no coded bodies, and penstock has to read what it counts. gzip is always
taken; zstd where Python has it (3.14) or its backport is installed (the extra `zstd`).
"""

import zlib
from io import BytesIO
from typing import Any, Final

from penstock.balancing.poison import Mark, Marking

try:
    from compression import zstd  # type: ignore[import-not-found,unused-ignore]
except ImportError:
    try:
        from backports import zstd
    except ImportError:
        zstd = None

# A body that decodes to more than so many times its size is refused, unless it is small.
RATIO_MAX: Final = 100
SMALL_BYTES: Final = 1_048_576
# The most that is decoded at once, and how much of the coded body is looked at for that.
PIECE_BYTES: Final = 1_048_576
_READ_BYTES: Final = 262_144
# RFC 9659: in HTTP, zstd looks back 8 MiB at most. A decoder holds as much.
_WINDOW_LOG_MAX: Final = 23
_GZIP: Final = 31  # zlib's number for gzip with a window of any size
BOM: Final = b"\xef\xbb\xbf"
CODINGS: Final = (b"gzip", b"zstd") if zstd is not None else (b"gzip",)


class Undecodable(Exception):
    """The body is not what its coding says. The text says what it is not."""


class RatioExceeded(Exception):
    """The body decodes to far more than its size."""


class Decoder:
    """Decodes one body, in any thread but not in two at once."""

    __slots__ = ("_at", "_body", "_coding", "_decoded", "_marking", "_rest", "_stream", "complete")

    def __init__(self, coding: bytes, path: bytes, body: bytes) -> None:
        """`coding`: one of CODINGS, or empty: only a byte order mark is taken off. `path`: of the
        request, which is a part of its mark."""
        self._coding = coding
        self._stream = _stream_of(coding)
        self._body = body
        self._at = 0
        self._rest = b""  # what zlib has read and not decoded yet
        self._decoded = BytesIO()
        self._marking = Marking(path)
        self.complete = False

    def more(self) -> int:
        """Decode some more. Returns how many bytes that were. Raises Undecodable, RatioExceeded."""
        begun, piece = self.size_bytes, self._next()
        if not begun:
            piece = piece.removeprefix(BOM)
        self._decoded.write(piece)
        self._marking.add(piece)
        if self.size_bytes > max(SMALL_BYTES, RATIO_MAX * len(self._body)):
            raise RatioExceeded
        return self.size_bytes - begun

    @property
    def size_bytes(self) -> int:
        """How much is decoded."""
        return self._decoded.tell()

    def whole(self) -> tuple[bytes, Mark]:
        """The decoded body, without a copy, and its mark."""
        return self._decoded.getvalue(), self._marking.mark

    def _next(self) -> bytes:
        piece = b""
        while not piece and not self.complete:
            piece = self._step()
        return piece

    def _step(self) -> bytes:
        """Decode from one read of the coded body."""
        stream = self._stream
        data = self._rest
        if not data and (stream is None or getattr(stream, "needs_input", True)):
            data = self._body[self._at : self._at + _READ_BYTES]
            self._at += len(data)
        if stream is None:
            self.complete = self._at == len(self._body)
            return data
        try:
            piece: bytes = stream.decompress(data, PIECE_BYTES)
        except Exception as error:  # zlib.error, ZstdError
            raise Undecodable(self._coding.decode()) from error
        self._rest = getattr(stream, "unconsumed_tail", b"")
        ended = self._at == len(self._body) and not self._rest
        if stream.eof:
            self.complete = True
            if stream.unused_data or not ended:  # a second member or frame
                raise Undecodable(self._coding.decode())
        elif not piece and ended and not data:
            raise Undecodable(self._coding.decode())
        return piece


def _stream_of(coding: bytes) -> Any:
    if coding == b"gzip":
        return zlib.decompressobj(_GZIP)
    if coding == b"zstd":
        return zstd.ZstdDecompressor(
            options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG_MAX}
        )
    return None
