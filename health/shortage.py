"""What this process itself lacks when it cannot connect: that accuses no backend."""

import errno
import logging
from typing import Final

logger = logging.getLogger(__name__)

# No descriptor, no memory in the kernel, no port of our own to connect from.
OWN_ERRORS: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}
)
TELL_S: Final = 60.0


class Lacking(OSError):
    """No connection could be tried, for want of something of our own."""


class Shortage:
    """Tells that backends cannot be asked, once in `TELL_S` for all of them."""

    def __init__(self) -> None:
        self._told_s = float("-inf")

    def tell(self, reason: str, now_s: float) -> None:
        if now_s - self._told_s < TELL_S:
            return
        self._told_s = now_s
        logger.warning(
            "backends cannot be asked, which says nothing of them reason=%s (see ulimit -n)", reason
        )
