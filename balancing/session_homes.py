"""Where each session's last turn went.

A cache's content is known by the text of prompts (`prefix_index`), so this decides little, between
places that cost about the same and where sessions are to stay. It tells people whether they did.
"""

from typing import Final

SESSIONS_MAX: Final = 65_536


class SessionHomes:
    """The last SESSIONS_MAX sessions."""

    __slots__ = ("_homes",)

    def __init__(self) -> None:
        self._homes: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._homes)

    def find(self, session: str | None) -> str | None:
        """The backend where it was last, as far as that is remembered."""
        return self._homes.get(session) if session is not None else None

    def put(self, session: str, backend: str) -> None:
        """A turn went there."""
        self._homes.pop(session, None)
        if len(self._homes) >= SESSIONS_MAX:
            del self._homes[next(iter(self._homes))]
        self._homes[session] = backend
