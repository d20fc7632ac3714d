"""Takes a long read of an answer, or one with very many lines, in slices.

A chunk costs as much as a hundred bytes, and an event that is not ordinary ten times that. If a
backend sends faster than its answer is processed, the loop would do nothing else. So only one slice
of such a read is taken at a time, and nothing more is read meanwhile. All answers together use at
most TURN_S of a turn (`answer_reads.py`). When bytes come for many answers together, one slice is
taken and the rest waits.

Short reads have one event or a few. If very many of them come in one turn, those with more lines
than that count against the slice, too: hundreds of reads of two kilobytes cost as much as one long
read.
"""

import asyncio
from typing import Final

# Ordinary reads have one event or a few, and are never cut.
SHORT_BYTES: Final = 2_048
# This many bytes of short reads are not examined: some thirty events, of this and earlier turns.
UNSEEN_BYTES: Final = 8_192
# The line ends of four ordinary events in a chunk each. Waiting would cost more than taking them.
FEW_LINE_ENDS: Final = 24
SLICE_BYTES: Final = 65_536
# The most line ends of a slice: some 85 ordinary events, each in a chunk. The costliest have two.
LINE_ENDS_MAX: Final = 512
LEAST_BYTES: Final = 1_024
# What a line end costs, in bytes: a slice may be full of either.
LINE_END_BYTES: Final = SLICE_BYTES // LINE_ENDS_MAX
TURN_S: Final = 0.001


class LongRead:
    """The rest of one read."""

    __slots__ = ("_at", "_data", "queued")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self.queued = False  # whether it waits for its next turn

    @property
    def size_bytes(self) -> int:
        """Of the whole read: it is kept until its last byte is taken."""
        return len(self._data)

    @property
    def left(self) -> bool:
        return self._at < len(self._data)

    def next(self) -> bytes:
        """The next slice."""
        at = self._at
        self._at = slice_end(self._data, at)
        return self._data[at : self._at]


class TurnShare:
    """How much all answers together may still take at once in this turn."""

    __slots__ = ("_called", "_left_bytes", "_loop", "_unseen_bytes")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._called = False  # the loop will renew the share
        self._left_bytes = SLICE_BYTES
        self._unseen_bytes = UNSEEN_BYTES  # of short reads

    def spares(self, data: bytes) -> bool:
        """Whether a short read is taken now, whatever is left of the share."""
        self._unseen_bytes -= len(data)
        if self._unseen_bytes > 0:
            return True
        if not self._called:
            # The count was carried over from earlier turns: begin a new one for this turn.
            self._call()
            self._unseen_bytes = UNSEEN_BYTES
            return True
        return _line_ends(data, 0, len(data)) <= FEW_LINE_ENDS

    def take(self, data: bytes, end: int) -> bool:
        """Whether `data` may be taken up to `end` now. The first read of a turn always may."""
        cost_bytes = end + LINE_END_BYTES * _line_ends(data, 0, end)
        if self._left_bytes < min(cost_bytes, SLICE_BYTES):
            return False
        self._call()
        self._left_bytes -= cost_bytes
        return True

    def _call(self) -> None:
        if not self._called:
            self._called = True
            self._loop.call_soon(self._renew)

    def _renew(self) -> None:
        self._called = False
        self._left_bytes = SLICE_BYTES
        self._unseen_bytes = UNSEEN_BYTES


def slice_end(data: bytes, at: int) -> int:
    """Where the slice that begins at `at` ends."""
    size = min(SLICE_BYTES, len(data) - at)
    while size > LEAST_BYTES and _line_ends(data, at, at + size) > LINE_ENDS_MAX:
        size //= 2
    return at + size


def _line_ends(data: bytes, begin: int, end: int) -> int:
    return data.count(b"\n", begin, end) + data.count(b"\r", begin, end)
