"""Bodies in a content coding, as clients send them."""

import gzip
import sys


def coded(coding: bytes, body: bytes) -> bytes:
    """The body in this coding."""
    if coding == b"gzip":
        return gzip.compress(body, 6)
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd.compress(body)
