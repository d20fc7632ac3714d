"""Tells what this process lacks itself when it cannot connect. No backend is to blame then."""

import errno
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Final

logger = logging.getLogger(__name__)

# No descriptor or no kernel memory: no other backend could be reached either. EADDRNOTAVAIL is not
# one of these: either no local port is left for this destination, or there is no route to it (an
# IPv6 address where IPv6 is off).
OWN_ERRORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_WHERE_TO_LOOK: Final = {
    "EMFILE": "ulimit -n",
    "ENFILE": "fs.file-max",
    "EADDRNOTAVAIL": "net.ipv4.ip_local_port_range and net.ipv4.tcp_tw_reuse",
}
TELL_S: Final = 60.0
_ANY_PORT: Final = 9


class Lacking(OSError):
    """No connection could be tried, because this process lacks something."""


def has_way(address: str) -> bool:
    """Whether the kernel has a route to this address and a local address to send from.

    Connecting a datagram socket asks just that. It sends nothing and takes no TCP port.
    """
    try:
        with socket.socket(
            socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM
        ) as sock:
            sock.connect((address, _ANY_PORT))
    except OSError as error:
        # Without a descriptor or a datagram port the kernel could not be asked: assume a route.
        return error.errno in OWN_ERRORS or error.errno == errno.EAGAIN
    return True


def explained(error: OSError, address: str, way: Callable[[str], bool]) -> OSError:
    """Why no connection to this address could be opened. Lacking when no local port is left."""
    if error.errno == errno.EADDRNOTAVAIL and way(address):
        return Lacking(error.errno, error.strerror)
    return error


def judge(failures: Sequence[OSError]) -> OSError:
    """The error that means the same as these failures of all addresses of a backend.

    Lacking, or ConnectionRefusedError if nobody listens, else another OSError. An address for
    which no local port is left may be the one that answers.
    """
    for error in failures:
        if isinstance(error, Lacking):
            return error
    if all(error.errno in OWN_ERRORS for error in failures):
        return Lacking(failures[-1].errno, failures[-1].strerror)
    tried = [error for error in failures if error.errno != errno.EADDRNOTAVAIL]
    refused = tried and all(isinstance(error, ConnectionRefusedError) for error in tried)
    return ConnectionRefusedError() if refused else OSError("no address took a connection")


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
