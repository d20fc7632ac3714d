"""Where each session's last turn went, and what it left there.

A cache's content is known by the text of prompts (`prefix_index`), so this decides little: it
tells people whether a session stayed, and it is all that is known of prompts whose text is not
theirs to compare, with images in them.
"""

from math import exp
from typing import Final, NamedTuple

# What a backend holds of a session is forgotten when others need the room: with this time
# constant, about what published conversations pause between turns (Mooncake: p90 255 s).
FORGET_S: Final = 300.0
SESSIONS_MAX: Final = 65_536


class Home(NamedTuple):
    """A backend's name, the tokens of the session's last turn there, and when it was."""

    backend: str
    tokens: int
    at_s: float

    def held_tokens(self, now_s: float) -> float:
        """What is probably still there."""
        return self.tokens * exp(-max(0.0, now_s - self.at_s) / FORGET_S)


class SessionHomes:
    """The last SESSIONS_MAX sessions."""

    __slots__ = ("_homes",)

    def __init__(self) -> None:
        self._homes: dict[str, Home] = {}

    def __len__(self) -> int:
        return len(self._homes)

    def find(self, session: str | None) -> Home | None:
        """Where it was last, as far as that is remembered."""
        return self._homes.get(session) if session is not None else None

    def put(self, session: str, backend: str, tokens: int, now_s: float) -> None:
        """A turn of so many tokens, its answer included, went there."""
        self._homes.pop(session, None)
        if len(self._homes) >= SESSIONS_MAX:
            del self._homes[next(iter(self._homes))]
        self._homes[session] = Home(backend, tokens, now_s)
