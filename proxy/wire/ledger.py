"""What clients hold that nobody works on, and who loses it when memory is short.

These are unfinished heads, reads that wait for their turn, parts of TLS records, and answers that
are not read. The rule: the holder with most of them loses its largest, again and again. A holder is
a tenant or an address; all clients without an accepted request are one. An answer that its client
reads goes only when nothing else is left, and then the one that was read longest ago.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heapreplace
from math import inf
from time import monotonic
from typing import Final, Protocol, TypeVar

# One holder for all clients without an accepted request. No tenant and no address has this name.
STRANGERS: Final = "*"
# The most that are closed at once: each takes some 50 us.
CLEARED: Final = 256
# Smaller things are not counted: there are no more of them than connections.
LEAST_BYTES: Final = 4_096
# The limit for all clients without an accepted request together.
STRANGERS_BYTES_MAX: Final = 33_554_432
NO_LIMIT: Final = 2**62
# At the limit this part of it is freed, so that all is looked at rarely.
STEPS: Final = 16
# An answer counts as read for so long after it began to wait, and if its client takes so much a
# second of it.
READ_S: Final = 1.0
READ_BYTES: Final = 32_768

T = TypeVar("T")


class Sender(Protocol):
    """The client behind a connection."""

    proven: bool  # a request of it that is not open to all was accepted

    @property
    def holder(self) -> str: ...
    def give_way(self, *, asked: bool = False) -> None:
        """Give up what it holds. `asked`: its unread bytes may be a request: it gets an error."""


class Item(Protocol):
    """A connection that holds something."""

    def give_way(self) -> None: ...


def victims(
    held: Iterable[tuple[str, int, T]], over_bytes: int, most: int = CLEARED
) -> tuple[list[T], int]:
    """What goes to free so many bytes, and how many that frees.

    `held`: (holder, bytes, item). Of a holder's items that are about as large the first one goes.
    """
    items: dict[str, list[tuple[int, T]]] = {}
    total: Counter[str] = Counter()
    for holder, size_bytes, item in held:
        items.setdefault(holder, []).append((size_bytes, item))
        total[holder] += size_bytes
    for each in items.values():
        each.reverse()
        each.sort(key=lambda entry: entry[0].bit_length())  # the next to go is last
    holders = [(-held_bytes, holder) for holder, held_bytes in total.items()]
    heapify(holders)
    found: list[T] = []
    freed_bytes = 0
    while holders and freed_bytes < over_bytes and len(found) < most:
        below_bytes, holder = holders[0]
        size_bytes, item = items[holder].pop()
        found.append(item)
        freed_bytes += size_bytes
        if items[holder]:
            heapreplace(holders, (below_bytes + size_bytes, holder))
        else:
            heappop(holders)
    return found, freed_bytes


class _Entry:
    """What one item holds."""

    def __init__(self, holder: str, size_bytes: int) -> None:
        self.holder = holder
        self.size_bytes = size_bytes
        self.left: Callable[[], int] | None = None
        self.left_bytes = 0  # at `seen_s`
        self.seen_s = 0.0
        self.read_s = -inf  # when it was read last


class Ledger:
    """All items. When they exceed `limit_bytes` together, some give way."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self.limit_bytes = NO_LIMIT
        self.held_bytes = 0
        self._held: Counter[str] = Counter()
        self._items: dict[Item, _Entry] = {}

    def add(
        self, item: Item, holder: str, size_bytes: int, left: Callable[[], int] | None = None
    ) -> None:
        """Count what an item holds now, in place of what it held.

        `holder`: a tenant, an address or STRANGERS. `left`: for an answer, how much of it its
        client has not taken yet, also of what the kernel holds.
        """
        if size_bytes < LEAST_BYTES:
            self.done(item)
            return
        entry = self._items.get(item)
        if entry is not None:
            self._count(entry.holder, -entry.size_bytes)
            entry.holder, entry.size_bytes = holder, size_bytes
        else:
            self._items[item] = entry = _Entry(holder, size_bytes)
        self._count(holder, size_bytes)
        entry.left = left
        if left is not None:
            entry.left_bytes = left()
            entry.seen_s = entry.read_s = self._clock()
        if self.held_bytes > self.limit_bytes:
            self._look()
            if self.held_bytes > self.limit_bytes:
                self._free("", self.held_bytes - self.limit_bytes + self.limit_bytes // STEPS)
        over_bytes = self._held[STRANGERS] - STRANGERS_BYTES_MAX
        if over_bytes > 0:
            self._free(STRANGERS, over_bytes + STRANGERS_BYTES_MAX // STEPS)

    def done(self, item: Item) -> None:
        """It holds nothing any more."""
        entry = self._items.pop(item, None)
        if entry is not None:
            self._count(entry.holder, -entry.size_bytes)

    def of(self, holder: str) -> int:
        return self._held[holder]

    def free(self, over_bytes: int) -> None:
        """Have items give way until so many bytes are free, but not more than CLEARED items."""
        self._look()
        self._free("", over_bytes)

    def _free(self, holder: str, over_bytes: int) -> None:
        """`holder`: whose items may go. Empty: everybody's."""
        if over_bytes <= 0:
            return
        now_s = self._clock()
        resting: list[tuple[str, int, Item]] = []
        read: list[tuple[float, int, Item]] = []
        for item, entry in self._items.items():
            if holder and entry.holder != holder:
                continue
            if now_s - entry.read_s < READ_S:
                read.append((entry.read_s, entry.size_bytes, item))
            else:
                resting.append((entry.holder, entry.size_bytes, item))
        going, freed_bytes = victims(resting, over_bytes)
        read.sort(key=lambda each: each[0])  # who took nothing for longest is first
        for _, size_bytes, item in read:
            if freed_bytes >= over_bytes or len(going) >= CLEARED:
                break
            going.append(item)
            freed_bytes += size_bytes
        for item in going:
            self.done(item)
            item.give_way()

    def _look(self) -> None:
        """See how much the clients have taken of their answers."""
        now_s = self._clock()
        for entry in self._items.values():
            if entry.left is None:
                continue
            left_bytes = entry.left()
            passed_s = max(READ_S, now_s - entry.seen_s)
            reads = entry.left_bytes - left_bytes >= READ_BYTES * passed_s
            if reads:
                entry.read_s = now_s
            if reads or passed_s > READ_S:
                entry.left_bytes, entry.seen_s = left_bytes, now_s
            if left_bytes < entry.size_bytes:
                self._count(entry.holder, left_bytes - entry.size_bytes)
                entry.size_bytes = left_bytes

    def _count(self, holder: str, size_bytes: int) -> None:
        self.held_bytes += size_bytes
        self._held[holder] += size_bytes
        if not self._held[holder]:
            del self._held[holder]
