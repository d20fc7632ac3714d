"""Which clients met the failures in a backend's present run. One client alone does not decide.

The clients with the most failures are counted by name. A client that is not among the names takes
one failure from each name, and a name without failures left is dropped (Misra and Gries, 1982). So
a run of any length needs few names, and a flood of one client never looks like many clients.
"""

from collections.abc import Set
from enum import Enum
from typing import Final

NAMES_MAX: Final = 8


class Cause(Enum):
    """What explains a failure, as far as is known."""

    BACKEND = "backend"
    NO_REQUEST = "no_request"  # the backend, and no request could have caused it
    CLIENT = "client"  # the client: its requests fail everywhere
    KIND = "kind"  # the kind of request: it fails everywhere


class Accusers:
    """The clients behind a run of failures at one backend."""

    __slots__ = ("_met", "count", "path")

    def __init__(self) -> None:
        self._met: dict[str, int] = {}  # each client's failures, less those taken from it
        self.count = 0
        self.path = ""  # the path of the last failed request

    def clear(self) -> None:
        """The run has ended."""
        if self.count:
            self._met.clear()
            self.count = 0

    def add(self, client: str | None, path: str = "") -> None:
        """Add a failure that `client` met. None: no request caused it, so nobody can fake it."""
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
        """Remove the failures of the client with the most of them: it caused them itself."""
        if self._met:
            loudest = max(self._met, key=self._met.__getitem__)
            self.count -= self._met.pop(loudest)

    @property
    def others(self) -> int:
        """Failures in the run that the client with the most of them did not meet.

        Up to an eighth too many, if there were more clients than names.
        """
        return self.count - max(self._met.values(), default=0)

    @property
    def clients(self) -> Set[str]:
        """The clients that are counted by name."""
        return self._met.keys()

    def of(self, client: str) -> int:
        """Failures that this client met. Too few, if there were more clients than names."""
        return self._met.get(client, 0)
