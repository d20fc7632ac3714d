"""Deciphers TLS records in slices if one read holds very many of them.

A record costs as much as a thousand bytes, and one that changes keys twenty times that, whatever it
holds. A read of 256 KiB may hold ten thousand. The heads of records are not encrypted, so they can
be counted. Of such a read a limited number is deciphered at a time, and no more is read meanwhile.
Reads of full records, as in a large body, are taken whole.

In one turn a limited number from all connections together is deciphered at once. The rest waits.

OpenSSL holds 35 KB for a part of a record, and nobody counts them. So a part of what a client
without a key sends is kept here until the rest comes, and is counted.
"""

import asyncio
from typing import Final

from penstock.proxy.wire.ledger import Ledger
from penstock.proxy.wire.scheduler import AT_ONCE_S, TURN_S, Scheduler

HEAD_BYTES: Final = 5
# The most records in a slice. A read of full records has half of that.
RECORDS_MAX: Final = 32
# A read of at most this many records is deciphered at once and not counted: queueing costs more
# than deciphering.
FEW_RECORDS: Final = 4
# The most at once in a turn, for all other reads together.
AT_ONCE_MAX: Final = 256
# What one costs.
RECORD_S: Final = AT_ONCE_S / AT_ONCE_MAX
# How many records one without data counts for: it may have changed keys.
BARREN_COST: Final = 8
# A server sends this many at first, as tickets. After more of them all reads of a peer are counted.
BARREN_FREE: Final = 4
# A peer with this many more such records than records with data only wants to cause work. One that
# changes keys after each record with data is kept.
BARREN_MAX: Final = 128
# The shortest encrypted record. Bytes that are no records are counted in this unit.
SHORTEST_BYTES: Final = 24
# The types of records are 20 to 23.
TYPE_MASK: Final = 0xFC
TYPES: Final = 0x14
HANDSHAKE: Final = 22
# The longest record of any version of TLS. OpenSSL refuses a longer one by its head.
RECORD_BYTES_MAX: Final = HEAD_BYTES + 16_384 + 2_048
# The types of records of which a slice may have a part: those of a known peer, those of a stranger
# during the handshake, whose length is limited, and those of a stranger after it.
ALL_TYPES: Final = bytes(range(256))
HELLO_TYPES: Final = bytes([HANDSHAKE])
NO_TYPES: Final = b""


class Records:
    """What one peer has sent and is not deciphered yet."""

    __slots__ = (
        "_ahead",
        "_at",
        "_data",
        "_empty",
        "_fits",
        "_foreign",
        "_next",
        "_parted",
        "_single",
        "barren",
        "count",
        "counted",
        "hello_bytes",
    )

    def __init__(self, *, strange: bool = False, single: bool = False) -> None:
        """`strange`: the peer is a client that has shown no key.

        `single`: take one record at a time until the end of the handshake, and count all of them
        for it. TLS 1.3 encrypts certificates, so that their records look like data.
        """
        self._data = b""
        # The types of records of which a slice may have a part.
        self._parted = HELLO_TYPES if strange else ALL_TYPES
        self._single = single
        self._fits = True  # the next slice takes everything that may be taken now
        self._empty = 0  # records without data so far
        self.barren = 0  # the same, minus those with data, and never below 0
        self._at = 0  # bytes before this are taken
        self._ahead = 0  # missing bytes of the record that was taken in part
        self._next = -1  # where the first record after the next slice begins; -1: unknown
        self._foreign = False  # bytes came that are no records; OpenSSL may accept them (SSL 2)
        self.count = 0  # records that end in the next slice, or in the last one taken
        self.counted = False  # every read is counted, also one with few records
        self.hello_bytes = 0  # declared by the handshake records that begin in the next slice

    def __len__(self) -> int:
        """How many bytes wait."""
        return len(self._data) - self._at

    @property
    def left(self) -> bool:
        """Whether there is a slice to take. A part of a head is none."""
        if len(self._data) - self._at < (1 if self._ahead else HEAD_BYTES):
            return False
        if self._parted is ALL_TYPES:
            return True
        self._measure()
        return self._next > self._at

    @property
    def keeps_parts(self) -> bool:
        """Whether parts of some records wait here for the rest."""
        return self._parted is not ALL_TYPES

    def shaken(self) -> None:
        """The handshake is over."""
        self._single = False
        if self.keeps_parts:
            self._parted = NO_TYPES
            self._next = -1

    def trust(self) -> None:
        """The peer is no stranger any more: keep no part of a record."""
        self._parted = ALL_TYPES
        self._next = -1

    def is_one(self, data: bytes) -> bool:
        """Whether this read is one record, with nothing waiting before it, and needs no count."""
        size = len(data)
        return (
            size > HEAD_BYTES
            and size == HEAD_BYTES + (data[3] << 8 | data[4])
            and not (self._ahead or self._data or self.counted)
        )

    def add(self, data: bytes) -> None:
        self._data = self._data[self._at :] + data if self._data else data
        self._at = 0
        self._next = -1

    def tally(self, count: int, with_data: int, reads: "RecordReads") -> None:
        """Count the records without data among `count` deciphered ones, and charge their cost."""
        empty = count - with_data
        self.barren = max(0, self.barren + empty - with_data)
        if empty > 0:
            reads.charge(BARREN_COST * empty)
            self._empty += empty
            if self._empty > BARREN_FREE:
                self.counted = True

    def fit(self) -> bool:
        """Whether one slice takes everything that may be taken now."""
        self._measure()
        return self._fits

    def take(self) -> bytes:
        """The next slice."""
        self._measure()
        data, at = self._data, self._at
        end = min(self._next, len(data))
        self._ahead = self._next - end
        self._at = end
        self._next = -1
        if end < len(data):
            return data[at:end]
        self._data = b""
        self._at = 0
        return data[at:] if at else data

    def rest(self) -> bytes:
        """All waiting bytes, unchanged."""
        data, self._data = self._data[self._at :], b""
        self._at = 0
        self._next = -1
        return data

    def _measure(self) -> None:
        if self._next >= 0:
            return
        data = self._data
        last = len(data) - HEAD_BYTES
        at = self._at + self._ahead
        count = 1 if self._ahead else 0
        size = 0
        self.hello_bytes = 0
        most = 1 if self._single else RECORDS_MAX
        while at <= last and count < most:
            count += 1
            if data[at] & TYPE_MASK == TYPES and not self._foreign:
                size = HEAD_BYTES + (data[at + 3] << 8 | data[at + 4])
                if data[at] == HANDSHAKE or self._single:
                    self.hello_bytes += size
                at += size
            else:
                self._foreign = self.counted = True
                at += SHORTEST_BYTES
        self._fits = at > last
        if at > len(data):  # only a part of the last one is here
            count -= 1
            if self.keeps_parts and not self._foreign and 0 < size <= RECORD_BYTES_MAX:
                begin = at - size
                if data[begin] not in self._parted:
                    at = begin
        self._next = at
        self.count = count


class RecordReads:
    """Decides which reads of records are taken at once and which in slices."""

    __slots__ = ("rota", "waiting")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        turn_s: float = TURN_S,
        waiting: Ledger | None = None,
    ) -> None:
        """`turn_s`: how long slices are taken in one turn. `waiting`: shared with other reads."""
        self.rota = Scheduler(loop, turn_s)
        self.waiting = waiting or Ledger()

    def take(self, count: int, *, counted: bool) -> bool:
        """Whether so many may be taken at once. If so, they are charged.

        A few records are free unless `counted`, until a turn's budget is overdrawn.
        """
        if count <= FEW_RECORDS and self.rota.left_s >= 0.0 and not counted:
            return True
        if count * RECORD_S > self.rota.left_s:
            return False
        self.charge(count)
        return True

    def charge(self, cost: int) -> None:
        """Charge what taken records cost beyond their number."""
        self.rota.spend(cost * RECORD_S)
