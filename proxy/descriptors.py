"""Whether the process may open as many descriptors as its connections need.

A proxy that runs out of them cannot accept, dial or probe, and looks alive. So
the limit is looked at before the port is opened: the soft limit is raised as far
as the hard one allows, and where that is too little fewer clients are let in.
"""

import errno
import logging
import resource
from typing import Final, Protocol

from proxy.connection_pool import IDLE_MAX
from proxy.plane import EVERYBODY, EXCESS_MAX
from proxy.visitors import BACKLOG, VISITORS_MAX

logger = logging.getLogger(__name__)

# Loop, listeners, log; the admin port's clients, those who come while others leave too.
OWN: Final = 32 + VISITORS_MAX + BACKLOG
# Probes and scrapes of a backend that may run at a time.
OF_A_BACKEND: Final = 4


class Limits(Protocol):
    """The part of the module `resource` that is used."""

    RLIM_INFINITY: int
    RLIMIT_NOFILE: int

    def getrlimit(self, which: int, /) -> tuple[int, int]: ...
    def setrlimit(self, which: int, limits: tuple[int, int], /) -> None: ...


def needed(connections: int, backends: int) -> int:
    """Descriptors for so many clients: each may have a connection to a backend.

    Idle connections to backends come on top, as they may not be the ones that the next
    requests need; there are never more of them than there were requests.
    """
    idle = min(IDLE_MAX * backends, connections)
    return 2 * connections + idle + EXCESS_MAX + OF_A_BACKEND * backends + OWN


def covered(descriptors: int, backends: int) -> int:
    """How many clients so many descriptors are enough for."""
    left = descriptors - EXCESS_MAX - OF_A_BACKEND * backends - OWN
    return max(left // 3, (left - IDLE_MAX * backends) // 2, 0)


def secure(connections: int, backends: int, limits: Limits = resource) -> int:
    """Raise the soft limit if it must be; how many clients it is enough for then.

    Raises OSError when that is none.
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


def warn(connections: int, backends: int, fit: int) -> None:
    """Say so when fewer clients fit than are configured, and what to do."""
    if fit < connections:
        logger.warning(
            "descriptors are too few: limits.connections=%d, taking %d clients; raise the limit "
            "to %d (ulimit -n, LimitNOFILE=, --ulimit nofile=), or lower limits.connections",
            connections,
            fit,
            needed(connections, backends),
        )
