"""The backend of each session's last turn in one pool.

The text of prompts tells what a cache holds (`prefix_index`). So this decides only between backends
that cost about the same, or where sessions must stay. It also tells people whether they did.
"""

from typing import Final

from penstock.balancing.fair_table import FairTable

SESSIONS_MAX: Final = 65_536


class SessionHomes:
    """The last SESSIONS_MAX sessions, at least each tenant's share of them."""

    __slots__ = ("_homes",)

    def __init__(self) -> None:
        self._homes: FairTable[str] = FairTable(SESSIONS_MAX)

    def __len__(self) -> int:
        return len(self._homes)

    def find(self, session: str | None, tenant: str = "") -> str | None:
        """The backend of the session's last turn, if it is remembered."""
        return self._homes.find(tenant, session) if session is not None else None

    def put(self, session: str, backend: str, tenant: str = "") -> None:
        """Note the backend of the session's last turn."""
        self._homes.put(tenant, session, backend)
