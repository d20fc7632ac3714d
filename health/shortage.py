"""Tells what this process lacks itself when it cannot connect. No backend is to blame then."""

import logging
from typing import Final

logger = logging.getLogger(__name__)

_WHERE_TO_LOOK: Final = {
    "EMFILE": "ulimit -n",
    "ENFILE": "fs.file-max",
    "EADDRNOTAVAIL": "net.ipv4.ip_local_port_range and net.ipv4.tcp_tw_reuse",
}
TELL_S: Final = 60.0


class Shortage:
    """Logs that backends cannot be asked, at most once in `TELL_S` for all of them."""

    def __init__(self) -> None:
        self._told_s = float("-inf")

    def tell(self, reason: str, now_s: float) -> None:
        if now_s - self._told_s < TELL_S:
            return
        self._told_s = now_s
        logger.warning(
            "backends cannot be asked, which says nothing of them reason=%s (see %s)",
            reason,
            _WHERE_TO_LOOK.get(reason, "the kernel's memory"),
        )
