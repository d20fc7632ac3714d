"""Who met the failures of a backend's present row: one client's word is not enough against it.

The loudest clients are counted by name, whenever they come: a client that has no place takes
one failure from each that has one, and who has none left loses its place (Misra and Gries,
1982). So a row of any length takes a few names, and a flood is never taken for many clients.
"""

from enum import Enum
from typing import Final

NAMES_MAX: Final = 8


class Cause(Enum):
    """What explains a failure, as far as is known."""

    BACKEND = "backend"
    NO_REQUEST = "no_request"  # the backend too, and no request could have caused it
    CLIENT = "client"  # whose requests fail everywhere
    KIND = "kind"  # of request that fails everywhere


class Accusers:
    """The clients behind a row of failures at one backend."""

    __slots__ = ("_met", "count", "path")

    def __init__(self) -> None:
        self._met: dict[str, int] = {}  # each client's failures, less what was taken from it
        self.count = 0
        self.path = ""  # what the last of them was for

    def clear(self) -> None:
        """The row is over."""
        if self.count:
            self._met.clear()
            self.count = 0

    def add(self, client: str | None, path: str = "") -> None:
        """One more failure, met by `client`; None: by no request's doing, nobody can feign it."""
        self.count += 1
        self.path = path
        if client is None:
            return
        met = self._met
        if client in met or len(met) < NAMES_MAX:
            met[client] = met.get(client, 0) + 1
        else:
            self._met = {each: count - 1 for each, count in met.items() if count > 1}

    def acquit(self) -> None:
        """The client with the most of them has caused its own: they are none of the row."""
        if self._met:
            loudest = max(self._met, key=self._met.__getitem__)
            self.count -= self._met.pop(loudest)

    @property
    def others(self) -> int:
        """Failures of the row that the client with the most of them did not meet.

        Or an eighth more, once there were more clients than names.
        """
        return self.count - max(self._met.values(), default=0)

    def of(self, client: str) -> int:
        """Those that this client met, or fewer, once there were more clients than names."""
        return self._met.get(client, 0)
