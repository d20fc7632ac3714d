"""Where each session's last turn went.

A cache's content is known by the text of prompts (`prefix_index`), so this decides little, between
places that cost about the same and where sessions are to stay. It tells people whether they did.
"""

from typing import Final

from balancing.fair_table import FairTable

SESSIONS_MAX: Final = 65_536


class SessionHomes:
    """The last SESSIONS_MAX sessions, each tenant's share of them at least."""

    __slots__ = ("_homes",)

    def __init__(self) -> None:
        self._homes: FairTable[str] = FairTable(SESSIONS_MAX)

    def __len__(self) -> int:
        return len(self._homes)

    def find(self, session: str | None, tenant: str = "") -> str | None:
        """The backend where it was last, as far as that is remembered."""
        return self._homes.find(tenant, session) if session is not None else None

    def put(self, session: str, backend: str, tenant: str = "") -> None:
        """A turn went there."""
        self._homes.put(tenant, session, backend)
