"""Takes a long read of an answer, or one with very many lines, in slices.

A chunk costs as much as a hundred bytes, and an event that is not ordinary ten times that. If a
backend sends faster than its answer is processed, the loop would do nothing else. So only one slice
of such a read is taken at a time, and nothing more is read meanwhile. When bytes come for many
answers together, a few slices are taken and the rest waits (`scheduler.py`).

Short reads have one event or a few. Those with more lines than that count, too: hundreds of reads
of two kilobytes cost as much as one long read.
"""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final

from penstock.proxy.wire import native
from penstock.proxy.wire.records import RecordReads
from penstock.proxy.wire.scheduler import Scheduler

# Ordinary reads have one event or a few, and are never cut.
SHORT_BYTES: Final = 2_048
# The line ends of four ordinary events in a chunk each. Waiting would cost more than taking them,
# and so it is with whatever is in so few bytes.
FEW_LINE_ENDS: Final = 24
FEW_BYTES: Final = 512
SLICE_BYTES: Final = 65_536
# The most line ends of a slice: some 85 ordinary events, each in a chunk. The costliest have two.
LINE_ENDS_MAX: Final = 512
LEAST_BYTES: Final = 1_024
# What a line end costs, in bytes: a slice may be full of either.
LINE_END_BYTES: Final = SLICE_BYTES // LINE_ENDS_MAX
# What a slice costs the loop.
SLICE_S: Final = 0.001


class AnswerReads:
    """What all backends' answers share: a part of each turn of the loop, and whose turn is next.

    With a part for each backend, hundreds of large answers from sixty backends would hold the loop
    for sixty times as long.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, now: Callable[[], float] = monotonic
    ) -> None:
        # Parties are backends for what they send, and clients for the ends of their large answers.
        self.scheduler = Scheduler(loop, now=now)
        self.records = RecordReads(loop)


class LongRead:
    """The rest of one read."""

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


def has_many_lines(data: bytes) -> bool:
    """Whether a read of more than FEW_BYTES has so many events that it may have to wait."""
    return _line_ends(data, 0, len(data)) > FEW_LINE_ENDS


def cost_s(data: bytes, end: int) -> float:
    """What taking `data` up to `end` costs the loop."""
    return (end + LINE_END_BYTES * _line_ends(data, 0, end)) * SLICE_S / SLICE_BYTES


def slice_end(data: bytes, at: int) -> int:
    """Where the slice that begins at `at` ends."""
    size = min(SLICE_BYTES, len(data) - at)
    while size > LEAST_BYTES and _line_ends(data, at, at + size) > LINE_ENDS_MAX:
        size //= 2
    return at + size


def any_line_ends(data: bytes, begin: int, end: int) -> int:
    """The twin of `native.line_ends`, which takes a tenth of the time."""
    return data.count(b"\n", begin, end) + data.count(b"\r", begin, end)


_line_ends: Final = native.line_ends if native.AVAILABLE else any_line_ends
