"""The backend of each session's last turn in one pool.

The text of prompts tells what a cache holds (`prefix_index`). So this decides only between backends
that cost about the same, or where sessions must stay. It also tells people whether they did.
"""

from typing import Final

from penstock.balancing.fair_table import FairTable

SESSIONS_MAX: Final = 65_536


class SessionHomes:
    """The last sessions, SESSIONS_MAX or fewer, at least each client's share of them.

    A session belongs to the client, a tenant or an address, that used it last.
    """

    __slots__ = ("_homes", "_of_clients")

    def __init__(self) -> None:
        self._homes: dict[str, tuple[str, str]] = {}  # session -> (backend, client)
        self._of_clients: FairTable[None] = FairTable(SESSIONS_MAX)

    def __len__(self) -> int:
        return len(self._homes)

    def limit(self, most: int) -> None:
        """Remember at most so many sessions from now on, and never more than SESSIONS_MAX."""
        self._of_clients.most = min(most, SESSIONS_MAX)
        self._shrink(self._of_clients.most)

    def halve(self) -> None:
        """Forget half of the sessions. As many as before may come."""
        self._shrink(len(self) // 2)

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

    def _shrink(self, size: int) -> None:
        for gone in self._of_clients.shrink(size):
            del self._homes[str(gone)]
        self._homes = dict(self._homes)  # without the room of what was deleted
