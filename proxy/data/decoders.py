"""Takes the content coding off request bodies.

Servers of models read no coded bodies, and penstock has to read what it counts. gzip is always
taken; zstd where Python has it (3.14) or its backport is installed (the extra `zstd`). A decoded
body counts as if it had just arrived.
"""

import zlib
from collections.abc import Callable
from typing import Final

try:
    from compression import zstd  # type: ignore[import-not-found,unused-ignore]
except ImportError:
    try:
        from backports import zstd
    except ImportError:
        zstd = None

# How many times its coded size a body larger than SMALL_BYTES may decode to.
RATIO_MAX: Final = 100
SMALL_BYTES: Final = 1_048_576
# RFC 9659: in HTTP, zstd looks back 8 MiB at most. A decoder holds as much.
_WINDOW_LOG_MAX: Final = 23
_GZIP: Final = 31  # zlib's number for gzip with a window of any size
BOM: Final = b"\xef\xbb\xbf"
CODINGS: Final = (b"gzip", b"zstd") if zstd is not None else (b"gzip",)


class Undecodable(Exception):
    """The body is not one whole piece of what its coding says."""


def decode(coding: bytes, body: bytes, most_bytes: int) -> bytes:
    """The body without its coding (empty: none) and its byte order mark. It is longer than
    `most_bytes` if that is not enough. Raises Undecodable."""
    if not coding:
        return body.removeprefix(BOM)
    try:
        if coding == b"gzip":
            stream = zlib.decompressobj(_GZIP)
        else:
            limits = {zstd.DecompressionParameter.window_log_max: _WINDOW_LOG_MAX}
            stream = zstd.ZstdDecompressor(options=limits)
        decoded: bytes = stream.decompress(body, most_bytes + 1 + len(BOM))
    except Exception as error:  # zlib.error, ZstdError
        raise Undecodable from error
    if len(decoded) <= most_bytes and (not stream.eof or stream.unused_data):
        raise Undecodable
    return decoded.removeprefix(BOM)


class Decoding:
    """A body to decode, up to `most_bytes`. `then` is called on the loop with the decoded body or
    with the error."""

    def __init__(
        self, coding: bytes, body: bytes, most_bytes: int, then: Callable[[bytes | Exception], None]
    ) -> None:
        self.wanted = True
        self.most_bytes = most_bytes
        self._coding = coding
        self._body = body
        self._then = then
        self._found: bytes | Exception = b""

    def end(self) -> None:
        """Nobody wants it any more."""
        self.wanted, self._body = False, b""

    def run(self) -> None:
        try:
            self._found = decode(self._coding, self._body, self.most_bytes)
        except Exception as error:  # noqa: BLE001 - told on the loop
            self._found = error

    def done(self) -> None:
        if self.wanted:
            self._then(self._found)
