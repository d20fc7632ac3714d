"""Whether the process may open as many file descriptors as its connections need.

A proxy without descriptors cannot accept, connect or probe, but looks alive. So the limit
is checked before the port is opened. The soft limit is raised as far as the hard limit
allows. Where that is not enough, fewer clients are served.
"""

import errno
import logging
import resource
from typing import Final, Protocol

from penstock.proxy.admin.visitors import ACCEPTED_MAX, VISITORS_MAX
from penstock.proxy.data.clients import EVERYBODY, EXCESS_MAX
from penstock.proxy.data.port import SEATLESS_MAX
from penstock.proxy.wire.pool import IDLE_MAX

logger = logging.getLogger(__name__)

# Event loop, listeners and logs; clients of the admin port, also while others are closing; clients
# without a seat, accepted and closing.
OWN: Final = 32 + VISITORS_MAX + ACCEPTED_MAX + 2 * SEATLESS_MAX
# Probes and scrapes of one backend that may run at the same time.
OF_A_BACKEND: Final = 4


class Limits(Protocol):
    """The part of the module `resource` that is used here."""

    RLIM_INFINITY: int
    RLIMIT_NOFILE: int

    def getrlimit(self, which: int, /) -> tuple[int, int]: ...
    def setrlimit(self, which: int, limits: tuple[int, int], /) -> None: ...


def needed(connections: int, backends: int) -> int:
    """Descriptors for this many clients. Each client may have a connection to a backend.

    Idle connections to backends come on top, because the next requests may not be able to use
    them. There are never more of them than there were requests.
    """
    idle = min(IDLE_MAX * backends, connections)
    return 2 * connections + idle + EXCESS_MAX + OF_A_BACKEND * backends + OWN


def covered(descriptors: int, backends: int) -> int:
    """The number of clients that this many descriptors are enough for."""
    left = descriptors - EXCESS_MAX - OF_A_BACKEND * backends - OWN
    return max(left // 3, (left - IDLE_MAX * backends) // 2, 0)


def secure(connections: int, backends: int, limits: Limits = resource) -> int:
    """Raise the soft limit if needed. Returns for how many clients it is enough.

    Raises OSError when it is not enough for one.
    """
    soft, hard = limits.getrlimit(limits.RLIMIT_NOFILE)
    wanted = needed(connections, backends)
    if soft == limits.RLIM_INFINITY:
        return EVERYBODY
    if soft < wanted:
        soft = wanted if hard == limits.RLIM_INFINITY else min(wanted, hard)
        limits.setrlimit(limits.RLIMIT_NOFILE, (soft, hard))
    fit = covered(soft, backends)
    if fit < 1:
        raise OSError(
            errno.EMFILE,
            f"{soft} file descriptors are too few to serve anybody; raise the limit to {wanted} "
            "(ulimit -n, LimitNOFILE=, --ulimit nofile=)",
        )
    return fit


def warn(connections: int, backends: int, fit: int, *, chosen: bool) -> None:
    """Tell when fewer clients fit than `limits.connections` allows.

    It is a warning if the operator has `chosen` that number. The default is more than most fleets
    need: then it is one only if not even half of it fits.
    """
    if fit < connections:
        logger.log(
            logging.WARNING if chosen or 2 * fit < connections else logging.INFO,
            "descriptors are too few: %d clients can be served, limits.connections=%d allows more; "
            "raise the limit on open files to %d (ulimit -n, LimitNOFILE=, --ulimit nofile=)",
            fit,
            connections,
            needed(connections, backends),
        )
