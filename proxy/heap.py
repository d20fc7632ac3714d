"""The C library's heap: the pages of a long prompt are kept for the next one.

As it is, a body of a megabyte is taken from the kernel and given back page by page with every
request, which was 40 % of what such a request cost (3.6 ms of CPU before, 2.1 after: `penstock
bench overhead`, prompts of 1 MB). Kept is at most TRIM_BYTES beyond what is in use; what is
larger than MMAP_BYTES still goes back at once.
"""

import ctypes
from typing import Final

TRIM_BYTES: Final = 16 * 2**20
MMAP_BYTES: Final = 4 * 2**20
# The parameters' numbers in glibc's malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def keep_pages() -> bool:
    """Set both limits; False where the C library has no such thing (musl)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, TRIM_BYTES) and mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES))
