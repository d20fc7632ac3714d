"""Takes the content coding off a request body.

Servers of models read no coded bodies, and penstock has to read what it counts. gzip is always
taken; zstd where Python has it (3.14) or its backport is installed (the extra `zstd`).
"""

import zlib
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
