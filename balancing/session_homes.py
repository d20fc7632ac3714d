"""The backend of each session's last turn in one pool.

The text of prompts tells what a cache holds (`prefix_index`). So this decides only between backends
that cost about the same, or where sessions must stay. It also tells people whether they did.
"""

from typing import Final

from penstock.balancing.fair_table import FairTable

SESSIONS_MAX: Final = 65_536


class SessionHomes:
    """The last SESSIONS_MAX sessions, at least each client's share of them.

    A session belongs to the client, a tenant or an address, that used it last.
    """

    __slots__ = ("_homes", "_of_clients")

    def __init__(self) -> None:
        self._homes: dict[str, tuple[str, str]] = {}  # session -> (backend, client)
        self._of_clients: FairTable[None] = FairTable(SESSIONS_MAX)

    def __len__(self) -> int:
        return len(self._homes)

    def find(self, session: str | None) -> str | None:
        """The backend of the session's last turn, if it is remembered."""
        home = self._homes.get(session) if session is not None else None
        return home[0] if home is not None else None

    def put(self, session: str, backend: str, client: str = "") -> None:
        """Note the backend of the session's last turn. The key is distinct for each tenant."""
        known = self._homes.get(session)
        if known is not None and known[1] != client:
            self._of_clients.remove(known[1], session)
        self._homes[session] = backend, client
        gone = self._of_clients.put(client, session, None)
        if gone is not None:
            del self._homes[str(gone)]
