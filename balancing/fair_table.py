"""A bounded table in which an owner that fills it displaces only its own entries.

Every entry belongs to an owner, a tenant or a client. When the table is full, the oldest entry of
the putting owner goes if that owner has its share already, otherwise that of the largest owner.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class FairTable(Generic[V]):
    """A table of at most `most` entries. Each owner's entries are in order, oldest first.

    Owners are also listed by their number of entries. There may be as many owners as entries, and a
    search among all of them for the largest takes milliseconds.
    """

    __slots__ = ("_largest", "_most", "_owners", "_size", "_tables")

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._tables: dict[str, dict[Hashable, V]] = {}
        self._owners: dict[int, dict[str, None]] = {}  # by the number of their entries
        self._largest = 0  # that number for the largest owner

    def __len__(self) -> int:
        return self._size

    def find(self, owner: str, key: Hashable) -> V | None:
        """The value, None when there is none."""
        table = self._tables.get(owner)
        return table.get(key) if table is not None else None

    def use(self, owner: str, key: Hashable) -> V | None:
        """The value, None when there is none. The entry becomes its owner's youngest."""
        table = self._tables.get(owner)
        value = table.pop(key, None) if table is not None else None
        if table is not None and value is not None:
            table[key] = value
        return value

    def put(self, owner: str, key: Hashable, value: V) -> Hashable | None:
        """Add an entry as its owner's youngest. Returns the key that was displaced, if any."""
        table = self._tables.get(owner)
        if table is None:
            table = self._tables[owner] = {}
        if key in table:
            del table[key]
        elif self._size >= self._most:
            gone = self._displace(owner)
            table[key] = value
            self._count(owner, len(table) - 1, len(table))
            return gone
        else:
            self._size += 1
            self._count(owner, len(table), len(table) + 1)
        table[key] = value
        return None

    def of(self, owner: str) -> dict[Hashable, V]:
        """All entries of an owner, oldest first. Do not change them."""
        return self._tables.get(owner, {})

    def remove(self, owner: str, key: Hashable) -> None:
        """Remove an entry, which must be there."""
        table = self._tables[owner]
        del table[key]
        self._size -= 1
        self._count(owner, len(table) + 1, len(table))
        if not table:
            del self._tables[owner]

    def _displace(self, owner: str) -> Hashable:
        tables = self._tables
        payer = owner
        if len(tables[owner]) < max(1, self._most // len(tables)):
            payer = next(iter(self._owners[self._largest]))
        table = tables[payer]
        oldest = next(iter(table))
        del table[oldest]
        self._count(payer, len(table) + 1, len(table))
        if not table and payer != owner:
            del tables[payer]
        return oldest

    def _count(self, owner: str, before: int, after: int) -> None:
        """An owner that had `before` entries has `after`, one more or one less."""
        owners = self._owners
        if before:
            del owners[before][owner]
            if not owners[before]:
                del owners[before]
        if after:
            owners.setdefault(after, {})[owner] = None
        if after > self._largest or (before == self._largest and before not in owners):
            self._largest = after
