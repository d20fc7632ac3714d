"""Reads that wait at a client's connection, and who loses them when memory is short.

A read waits for its turn, and its connection is not read meanwhile. A part of a TLS record waits
here, too, if no key was shown. The holder with most of all this loses its largest, whoever came
first. All clients that have shown no key are one holder.
"""

from collections import Counter
from heapq import nlargest
from operator import itemgetter
from typing import Final, Protocol

from penstock.proxy.wire.party import STRANGERS

# The most that are closed at once.
CLEARED: Final = 64
# Smaller reads stay: closing them frees nothing.
LEAST_BYTES: Final = 4_096
# The limit for all clients without an accepted request together, as for their unfinished heads.
STRANGERS_BYTES_MAX: Final = 33_554_432
NO_LIMIT: Final = 2**62
# `clear` looks at everything that waits. It frees this part of the limit, so that it is rare.
STEPS: Final = 16


class Sender(Protocol):
    """The client behind a connection."""

    proven: bool  # a request of it that is not open to all was accepted

    @property
    def holder(self) -> str: ...
    def give_way(self, *, asked: bool = False) -> None:
        """Give up what it holds. `asked`: its unread bytes may be a request: it gets an error."""


class Reader(Protocol):
    """A connection whose read waits."""

    def give_way(self) -> None: ...


class Waiting:
    """All waiting reads.

    When those of clients with an accepted request exceed `limit_bytes`, the largest give way.
    """

    __slots__ = (
        "_known",
        "_known_bytes",
        "_left_bytes",
        "_strangers",
        "_strangers_bytes",
        "limit_bytes",
    )

    def __init__(self) -> None:
        self.limit_bytes = NO_LIMIT
        self._known: dict[Reader, tuple[str, int]] = {}  # (holder, bytes)
        self._known_bytes = 0
        self._left_bytes = 0  # known bytes after the last `clear`
        self._strangers: dict[Reader, int] = {}  # bytes; the longest waiting first
        self._strangers_bytes = 0

    def add(self, reader: Reader, holder: str, size_bytes: int) -> None:
        """Count the waiting bytes of a connection. `holder` is a tenant, an address or STRANGERS.

        If strangers have too many, the longest waiting one is closed.
        """
        if holder != STRANGERS:
            self.done(reader)
            self._known[reader] = (holder, size_bytes)
            self._known_bytes += size_bytes
            step_bytes = self.limit_bytes // STEPS
            if self._known_bytes > max(self.limit_bytes, self._left_bytes + step_bytes):
                self.clear(self._known_bytes - self.limit_bytes + step_bytes)
                self._left_bytes = self._known_bytes
            return
        self._strangers_bytes += size_bytes - self._strangers.get(reader, 0)
        self._strangers[reader] = size_bytes
        while self._strangers_bytes > STRANGERS_BYTES_MAX:
            oldest = next(iter(self._strangers))
            self.done(oldest)
            oldest.give_way()

    def done(self, reader: Reader) -> None:
        """Nothing of this reader waits any more."""
        self._strangers_bytes -= self._strangers.pop(reader, 0)
        known = self._known.pop(reader, None)
        if known is not None:
            self._known_bytes -= known[1]
            self._left_bytes = min(self._left_bytes, self._known_bytes)

    def of(self, holder: str) -> int:
        """How many bytes of a holder wait."""
        known = sum(size_bytes for whose, size_bytes in self._known.values() if whose == holder)
        return self._strangers_bytes if holder == STRANGERS else known

    def clear(self, over_bytes: int = NO_LIMIT) -> None:
        """Free so much: the holder with the most waiting bytes loses its largest.

        Holders with at least half as many bytes lose theirs next, up to CLEARED in all.
        """
        reads: dict[str, list[tuple[int, Reader]]] = {}
        held: Counter[str] = Counter()
        entries = [(STRANGERS, size_bytes, one) for one, size_bytes in self._strangers.items()]
        entries += [(holder, size_bytes, one) for one, (holder, size_bytes) in self._known.items()]
        for holder, size_bytes, reader in entries:
            if size_bytes >= LEAST_BYTES:
                reads.setdefault(holder, []).append((size_bytes, reader))
                held[holder] += size_bytes
        left = CLEARED
        least_bytes = max(held.values(), default=0) / 2
        for holder, held_bytes in held.most_common():
            if held_bytes < least_bytes:
                break
            for size_bytes, reader in nlargest(left, reads[holder], key=itemgetter(0)):
                if over_bytes <= 0:
                    return
                left -= 1
                over_bytes -= size_bytes
                self.done(reader)
                reader.give_way()
