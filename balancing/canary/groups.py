"""Clients in a few groups, so that each group can be left out of the evidence.

One client is in one group. The first clients have a group each; all others share them by hash. So
a table of a fixed size is enough, however many clients there are.
"""

from typing import Final

import xxhash

GROUPS: Final = 16


class Groups:
    """Which group a client is in."""

    __slots__ = ("_first",)

    def __init__(self) -> None:
        self._first: dict[str, int] = {}

    def of(self, client: str) -> int:
        """The group of a client, always the same one."""
        known = self._first.get(client)
        if known is not None:
            return known
        if len(self._first) < GROUPS:
            self._first[client] = len(self._first)
            return len(self._first) - 1
        return xxhash.xxh3_64_intdigest(client.encode()) % GROUPS

    @property
    def number(self) -> int:
        """How many groups have a client."""
        return len(self._first)
