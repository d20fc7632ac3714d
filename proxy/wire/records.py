"""Finds TLS records in what a peer has sent, and limits how many are deciphered in one turn.

A record costs as much as a thousand bytes, and one that changes keys twenty times that, whatever it
holds. A read of 256 KiB may hold ten thousand. The heads of records are not encrypted, so they can
be counted. Of such a read a limited number is deciphered at a time, and no more is read meanwhile.
In one turn a limited number from all connections together is deciphered at once.

OpenSSL holds 35 KB for a part of a record, and nobody counts them. So it gets whole records only.
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
# The types of records are 20 to 23.
TYPE_MASK: Final = 0xFC
TYPES: Final = 0x14
# The longest record of any version of TLS.
RECORD_BYTES_MAX: Final = HEAD_BYTES + 16_384 + 2_048


class Records:
    """What one peer has sent and is not deciphered yet."""

    def __init__(self, *, single: bool = False) -> None:
        """`single`: take one record at a time, until this is False."""
        self.single = single
        self._data = b""
        self._at = 0  # bytes before this are taken
        self._end = -1  # where the next slice ends; -1: unknown
        self._fits = True
        self.count = 0  # records in the next slice, or in the last one taken

    def __len__(self) -> int:
        return len(self._data) - self._at

    @property
    def left(self) -> bool:
        """Whether there is a slice to take."""
        self._measure()
        return self._end > self._at

    @property
    def fits(self) -> bool:
        """Whether the next slice takes all whole records."""
        self._measure()
        return self._fits

    def is_one(self, data: bytes) -> bool:
        """Whether this read is one record, with nothing waiting before it."""
        size = len(data)
        whole = size > HEAD_BYTES and size == HEAD_BYTES + (data[3] << 8 | data[4])
        return whole and not self._data

    def add(self, data: bytes) -> None:
        self._data = self._data[self._at :] + data if self._data else data
        self._at = 0
        self._end = -1

    def take(self) -> memoryview:
        """The next slice."""
        self._measure()
        slice_ = memoryview(self._data)[self._at : self._end]
        if self._fits:  # a part of a record is left: do not hold the whole read for it
            self._data = self._data[self._end :]
            self._at = 0
        else:
            self._at = self._end
        self._end = -1
        return slice_

    def rest(self) -> bytes:
        """All waiting bytes, unchanged."""
        data, self._data = self._data[self._at :], b""
        self._at = 0
        self._end = -1
        return data

    def _measure(self) -> None:
        """Find the end of the next slice. What is no record is a slice: OpenSSL says what it is."""
        if self._end >= 0:
            return
        data, at = self._data, self._at
        size = len(data)
        most = 1 if self.single else RECORDS_MAX
        count = 0
        self._fits = True
        while size - at >= HEAD_BYTES:
            end = at + HEAD_BYTES + (data[at + 3] << 8 | data[at + 4])
            if data[at] & TYPE_MASK != TYPES or end - at > RECORD_BYTES_MAX:
                end = size
            elif end > size:
                break
            if count == most:
                self._fits = False
                break
            count += 1
            at = end
        self._end = at
        self.count = count


class RecordReads:
    """Decides which reads of records are taken at once and which in slices."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        turn_s: float = TURN_S,
        waiting: Ledger | None = None,
    ) -> None:
        """`turn_s`: how long slices are taken in one turn. `waiting`: shared with other reads."""
        self.rota = Scheduler(loop, turn_s)
        self.waiting = waiting or Ledger()

    def take(self, count: int) -> bool:
        """Whether so many may be taken at once. If so, they are charged.

        A few records are free, until a turn's budget is overdrawn.
        """
        if count <= FEW_RECORDS and self.rota.left_s >= 0.0:
            return True
        if count * RECORD_S > self.rota.left_s:
            return False
        self.charge(count)
        return True

    def charge(self, cost: int) -> None:
        """Charge what taken records cost beyond their number."""
        self.rota.spend(cost * RECORD_S)
