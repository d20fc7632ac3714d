"""A bounded table in which an owner that fills it displaces only its own entries.

Every entry belongs to an owner, a tenant or a client. When the table is full, the oldest entry of
the putting owner goes if that owner has its share already, otherwise that of the largest owner.
Anybody may make many owners, so the largest is known without a look at the others.
"""

from collections import OrderedDict
from collections.abc import Hashable
from itertools import islice
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class FairTable(Generic[V]):
    """A table of at most `most` entries. Each owner's entries are in order, oldest first."""

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


def put_last(table: dict[K, V], key: K, value: V, most: int) -> None:
    """Put an entry in a table as its youngest. Beyond so many entries the oldest is forgotten."""
    table.pop(key, None)
    table[key] = value
    if len(table) > most:
        del table[next(iter(table))]


class KeyTable(Generic[V]):
    """Values by keys that are distinct for all owners. A key belongs to the owner that put it last.

    It has `most` entries or fewer, at least each owner's share of them.
    """

    def __init__(self, most: int) -> None:
        self._known: dict[str, tuple[V, str]] = {}  # the value and the owner
        self._owned: FairTable[None] = FairTable(most)
        self._most = most

    def __len__(self) -> int:
        return len(self._known)

    def limit(self, most: int) -> None:
        """Keep at most so many from now on, and never more than at first."""
        self._owned.most = min(most, self._most)
        self._shrink(self._owned.most)

    def halve(self) -> None:
        """Forget half of the entries. As many as before may come."""
        self._shrink(len(self) // 2)

    def find(self, key: str) -> V | None:
        """The value, None when there is none."""
        known = self._known.get(key)
        return known[0] if known is not None else None

    def put(self, key: str, value: V, owner: str = "") -> None:
        """Add an entry as its owner's youngest."""
        known = self._known.get(key)
        if known is not None and known[1] != owner:
            self._owned.remove(known[1], key)
        self._known[key] = value, owner
        gone = self._owned.put(owner, key, None)
        if gone is not None:
            del self._known[str(gone)]

    def change(self, key: str, value: V) -> None:
        """Give an entry, which must be there, another value."""
        self._known[key] = value, self._known[key][1]

    def oldest(self, owner: str) -> str:
        """The oldest key of an owner that has some."""
        return str(next(iter(self._owned.of(owner))))

    def remove(self, key: str) -> None:
        """Remove an entry, which must be there."""
        _, owner = self._known.pop(key)
        self._owned.remove(owner, key)

    def _shrink(self, size: int) -> None:
        for gone in self._owned.shrink(size):
            del self._known[str(gone)]
        self._known = dict(self._known)  # without the room of what was deleted
