"""Sessions of the page: got with a token once, and kept in memory only.

A session counts while its token does. So a reload with another token ends all of the old one. Of an
id only the digest is kept. Each token has places of its own: who may only read pushes out nobody
who may do more. In them an address pushes out its own sessions once it has its share.
"""

from collections.abc import Callable, Collection
from hashlib import sha256
from secrets import token_urlsafe
from typing import Final

from penstock.balancing.fair_table import FairTable

LIFETIME_S: Final = 12 * 3_600.0
SESSIONS_MAX: Final = 64  # of each token
ID_BYTES: Final = 32


class Sessions:
    """All sessions. Tokens are told by their digests."""

    def __init__(
        self, most: int = SESSIONS_MAX, new_id: Callable[[int], str] = token_urlsafe
    ) -> None:
        self._most = most
        self._new_id = new_id
        self._ends: dict[bytes, FairTable[float]] = {}  # by token: until when each counts
        self._places: dict[bytes, tuple[bytes, str]] = {}  # its token and owner

    def __len__(self) -> int:
        return len(self._places)

    def follow(self, tokens: Collection[bytes]) -> None:
        """Only these tokens count from now on."""
        gone = [each for each in self._ends if each not in tokens]
        if gone:
            self._ends = {each: ends for each, ends in self._ends.items() if each in tokens}
            places = self._places.items()
            self._places = {key: place for key, place in places if place[0] in tokens}

    def begin(self, token: bytes, owner: str, now_s: float) -> str:
        """A new session of who has shown this token. Returns its id."""
        ends = self._ends.get(token)
        if ends is None:
            ends = self._ends[token] = FairTable(self._most)
        session_id = self._new_id(ID_BYTES)
        key = digest_of(session_id)
        lost = ends.put(owner, key, now_s + LIFETIME_S)
        if isinstance(lost, bytes):
            del self._places[lost]
        self._places[key] = token, owner
        return session_id

    def token_of(self, session_id: str, now_s: float) -> bytes | None:
        """The token of a session. None if there is none with this id, or not any more."""
        key = digest_of(session_id)
        place = self._places.get(key)
        if place is None:
            return None
        until_s = self._ends[place[0]].find(place[1], key)
        if until_s is None or now_s >= until_s:
            self._remove(key)
            return None
        return place[0]

    def end(self, session_id: str) -> bool:
        """End a session. Returns whether there was one."""
        key = digest_of(session_id)
        if key not in self._places:
            return False
        self._remove(key)
        return True

    def _remove(self, key: bytes) -> None:
        token, owner = self._places.pop(key)
        self._ends[token].remove(owner, key)


def digest_of(secret: str) -> bytes:
    """What is kept of a secret, and compared: that takes the same time for any input."""
    return sha256(secret.encode("utf-8", "surrogateescape")).digest()
