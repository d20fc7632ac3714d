"""The C library's heap: memory of a long prompt is kept for the next one.

By default a body of a megabyte is taken from the kernel and given back, page by page, for
every request. That was 40 % of the cost of such a request (3.6 ms of CPU before, 2.1 after:
`penstock bench overhead`, prompts of 1 MB). At most TRIM_BYTES beyond the memory in use are
kept. Blocks larger than MMAP_BYTES still go back at once.
"""

import ctypes
from typing import Final

TRIM_BYTES: Final = 16 * 2**20
MMAP_BYTES: Final = 4 * 2**20
# The numbers of the parameters in glibc's malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def keep_pages() -> bool:
    """Set both limits. False where the C library cannot (musl)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, TRIM_BYTES) and mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES))
