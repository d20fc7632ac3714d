"""How the memory of the process is shared by what can fill it quickly.

The memory in use is measured four times a second. Clients and backends can fill it faster, so each
kind of content has a limit of its own. The limits follow from the memory that the process may have
and what it takes without clients. What is remembered of sessions and stored responses has a limit
too: it stays when the clients are gone.
"""

import logging
from typing import Final

from penstock.proxy.data.overload import MEMORY_SHARE
from penstock.proxy.wire.ledger import NO_LIMIT

logger = logging.getLogger(__name__)

# Two parts for bodies, because there is a copy of a body while it is read; one for what the ledger
# counts, such as unread answers; one for answers that are held until they are whole.
PARTS: Final = 4
PART_BYTES_MIN: Final = 1_048_576
# The share of the tables of sessions and stored responses, before the rest is divided. With a
# larger one, a limit of 256 MiB would not leave parts for bodies of 32 MiB, the default.
TABLES_SHARE: Final = 1 / 24
# What an entry takes. Measured in full tables: 320 bytes (a session) with one client, 790 (a
# session) and 840 (a response) with a client for each entry and keys as long as any. Such keys that
# are not Latin take 1,270: then the tables have 1 % of the memory more than their share.
ENTRY_BYTES: Final = 1_024
# The kernel counts the buffers of sockets and the files of logs, too, before it kills the process.
GROUP_SHARE: Final = 0.8
_MIB: Final = 1_048_576


class Memory:
    """The memory that the process may have. `limit_bytes` is 0 when it has no limit."""

    def __init__(self, group_bytes: int = 0, resting_bytes: int = 0) -> None:
        """`group_bytes`: the limit of the control group, or 0. `resting_bytes`: in use at start."""
        self._group_bytes = group_bytes
        self._resting_bytes = resting_bytes
        self.limit_bytes = int(GROUP_SHARE * group_bytes)

    def use(self, limit_bytes: int | None) -> None:
        self.limit_bytes = limit_bytes or int(GROUP_SHARE * self._group_bytes)

    @property
    def part_bytes(self) -> int:
        """The most that one kind may take."""
        if not self.limit_bytes:
            return NO_LIMIT
        return max(PART_BYTES_MIN, int(self._free_bytes * (1 - TABLES_SHARE)) // PARTS)

    def entries(self, tables: int) -> int:
        """The most entries in each of so many tables of sessions and stored responses."""
        if not self.limit_bytes:
            return NO_LIMIT
        return max(1, int(self._free_bytes * TABLES_SHARE) // (ENTRY_BYTES * tables))

    @property
    def _free_bytes(self) -> int:
        return int(MEMORY_SHARE * self.limit_bytes) - self._resting_bytes

    @property
    def suffices(self) -> bool:
        """Whether requests can be served at all."""
        return not self.limit_bytes or self._resting_bytes <= MEMORY_SHARE * self.limit_bytes

    def warn(self, body_bytes: int) -> None:
        """Log what does not fit. `body_bytes`: the largest body that the configuration allows."""
        resting_mib = self._resting_bytes / _MIB
        limit_mib = self.limit_bytes / _MIB
        if not self.suffices:
            logger.error(
                "the memory limit is too small, every request will be refused: it is %.0f MiB, and"
                " penstock takes %.0f MiB without clients; give it %.0f MiB or more",
                limit_mib,
                resting_mib,
                2 * resting_mib,
            )
        elif body_bytes > self.part_bytes:
            logger.warning(
                "bodies above %.0f MiB will be refused, though limits.body_bytes allows %.0f MiB:"
                " the memory limit of %.0f MiB leaves no more; raise it or lower limits.body_bytes",
                self.part_bytes / _MIB,
                body_bytes / _MIB,
                limit_mib,
            )
