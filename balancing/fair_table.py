"""A bounded table in which whoever fills it displaces its own entries, nobody else's.

Entries are somebody's, a tenant's or a client's. When there is no room, the oldest entry goes
of the owner who puts one more, if it has its share already; else of the owner who has most.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class FairTable(Generic[V]):
    """At most `most` entries, each owner's oldest first."""

    __slots__ = ("_most", "_size", "_tables")

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._tables: dict[str, dict[Hashable, V]] = {}

    def __len__(self) -> int:
        return self._size

    def find(self, owner: str, key: Hashable) -> V | None:
        """What is there, None when nothing is."""
        table = self._tables.get(owner)
        return table.get(key) if table is not None else None

    def use(self, owner: str, key: Hashable) -> V | None:
        """The same, and it is the owner's youngest from now on."""
        table = self._tables.get(owner)
        value = table.pop(key, None) if table is not None else None
        if table is not None and value is not None:
            table[key] = value
        return value

    def put(self, owner: str, key: Hashable, value: V) -> Hashable | None:
        """Keep it, as the owner's youngest. Returns the key that had to go for it, if any."""
        table = self._tables.get(owner)
        if table is None:
            table = self._tables[owner] = {}
        if key in table:
            del table[key]
        elif self._size < self._most:
            self._size += 1
        else:
            gone = self._displace(owner)
            table[key] = value
            return gone
        table[key] = value
        return None

    def of(self, owner: str) -> dict[Hashable, V]:
        """All that a owner has, oldest first. To be read."""
        return self._tables.get(owner, {})

    def remove(self, owner: str, key: Hashable) -> None:
        """It must be there."""
        table = self._tables[owner]
        del table[key]
        self._size -= 1
        if not table:
            del self._tables[owner]

    def _displace(self, owner: str) -> Hashable:
        tables = self._tables
        payer = owner
        if len(tables[owner]) < max(1, self._most // len(tables)):
            payer = max(tables, key=lambda each: len(tables[each]))
        table = tables[payer]
        oldest = next(iter(table))
        del table[oldest]
        if not table and payer != owner:
            del tables[payer]
        return oldest
