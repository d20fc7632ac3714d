"""A long read of an answer, or one of very many lines, taken by turns.

A chunk costs as much as a hundred bytes of one, an event out of the ordinary ten times that; and
where a backend sends faster than its answer is read, the loop would go on reading it. So of such a
read one slice is taken at a time, and nothing more is read meanwhile. All answers of one backend
together hold the loop no longer than TURN_S in a turn: of what comes for many of them at once, no
more than a slice is taken at once, and the rest waits.
"""

import asyncio
from typing import Final

# Ordinary reads are of an event or a few, and are not looked at.
SHORT_BYTES: Final = 2_048
SLICE_BYTES: Final = 65_536
# Of a slice: some 85 ordinary events, each in a chunk of its own. The dearest have two each.
LINE_ENDS_MAX: Final = 512
LEAST_BYTES: Final = 1_024
# What a line end costs, as bytes: a slice may have as much of either.
LINE_END_BYTES: Final = SLICE_BYTES // LINE_ENDS_MAX
TURN_S: Final = 0.001


class LongRead:
    """What is left of one read."""

    __slots__ = ("_at", "_data", "queued")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self.queued = False  # for its next turn

    @property
    def left(self) -> bool:
        return self._at < len(self._data)

    def next(self) -> bytes:
        """The next slice."""
        at = self._at
        self._at = slice_end(self._data, at)
        return self._data[at : self._at]


class TurnShare:
    """How much of a slice one backend's answers have left to take at once in this turn."""

    __slots__ = ("_left_bytes", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._left_bytes = SLICE_BYTES

    def take(self, data: bytes, end: int) -> bool:
        """Whether `data` may be taken up to `end` now. The first of a turn may, whatever it is."""
        cost_bytes = end + LINE_END_BYTES * _line_ends(data, 0, end)
        if self._left_bytes == SLICE_BYTES:
            self._loop.call_soon(self._renew)
        elif cost_bytes > self._left_bytes:
            return False
        self._left_bytes -= cost_bytes
        return True

    def _renew(self) -> None:
        self._left_bytes = SLICE_BYTES


def slice_end(data: bytes, at: int) -> int:
    """Where the slice that begins at `at` ends."""
    size = min(SLICE_BYTES, len(data) - at)
    while size > LEAST_BYTES and _line_ends(data, at, at + size) > LINE_ENDS_MAX:
        size //= 2
    return at + size


def _line_ends(data: bytes, begin: int, end: int) -> int:
    return data.count(b"\n", begin, end) + data.count(b"\r", begin, end)
