"""A bounded table in which an owner that fills it displaces only its own entries.

Every entry belongs to an owner, a tenant or a client. When the table is full, the oldest entry of
the putting owner goes if that owner has its share already, otherwise that of the largest owner.
Anybody may make many owners, so the largest is known without a look at the others.
"""

from collections import OrderedDict
from collections.abc import Hashable
from itertools import islice
from typing import Generic, TypeVar

V = TypeVar("V")


class FairTable(Generic[V]):
    """A table of at most `most` entries. Each owner's entries are in order, oldest first."""

    __slots__ = ("_largest", "_size", "_sizes", "_tables", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self._size = 0
        self._tables: dict[str, dict[Hashable, V]] = {}
        # `_sizes`: for each number of entries, the owners that have so many, longest first.
        # `_largest`: the largest of these numbers. A plain dict finds its first key slowly after
        # many deletions.
        self._sizes: dict[int, OrderedDict[str, None]] = {}
        self._largest = 0

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
        gone = None
        full = self._size >= self.most
        if key in table:
            del table[key]
        elif full and len(table) >= max(1, self.most // len(self._tables)):
            gone = next(iter(table))
            del table[gone]
        else:
            if full:
                gone = self._displace()
            self._size += 1
            self._count(owner, len(table), len(table) + 1)
        table[key] = value
        return gone

    def of(self, owner: str) -> dict[Hashable, V]:
        """All entries of an owner, oldest first. Do not change them."""
        return self._tables.get(owner, {})

    def values(self) -> list[V]:
        """Those of all owners."""
        return [value for table in self._tables.values() for value in table.values()]

    def remove(self, owner: str, key: Hashable) -> None:
        """Remove an entry, which must be there."""
        table = self._tables[owner]
        del table[key]
        self._size -= 1
        self._count(owner, len(table) + 1, len(table))
        if not table:
            del self._tables[owner]

    def shrink(self, size: int) -> list[Hashable]:
        """Remove the oldest of the largest owners until `size` are left. Returns their keys.

        Deleting keys one by one frees no memory and makes a dict's first key slow to find. So this
        counts first how many entries each owner loses, then copies those that stay.
        """
        lost: dict[str, int] = {}
        for _ in range(self._size - size):
            largest, most = next(iter(self._sizes[self._largest])), self._largest
            self._count(largest, most, most - 1)
            lost[largest] = lost.get(largest, 0) + 1
        gone: list[Hashable] = []
        for owner, number in lost.items():
            table = self._tables.pop(owner)
            gone += islice(table, number)
            if number < len(table):
                self._tables[owner] = dict(islice(table.items(), number, None))
        self._tables = dict(self._tables)
        self._size -= len(gone)
        return gone

    def _displace(self) -> Hashable:
        """Remove the oldest entry of the largest owner."""
        largest = next(iter(self._sizes[self._largest]))
        oldest = next(iter(self._tables[largest]))
        self.remove(largest, oldest)
        return oldest

    def _count(self, owner: str, before: int, now: int) -> None:
        """Note that an owner has one entry more or less."""
        if before:
            equals = self._sizes[before]
            del equals[owner]
            if not equals:
                del self._sizes[before]
                if before == self._largest:
                    self._largest = now
        if now:
            equals = self._sizes.setdefault(now, OrderedDict())
            equals[owner] = None
            self._largest = max(self._largest, now)
