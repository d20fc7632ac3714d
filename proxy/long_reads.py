"""A long read of an answer, or one of very many lines, taken by turns.

A chunk costs as much as a hundred bytes of one, an event out of the ordinary ten times that; and
where a backend sends faster than its answer is read, the loop would go on reading it. So of such a
read one slice is taken at a time, and nothing more is read meanwhile. All answers of one backend
together hold the loop no longer than TURN_S in a turn.
"""

from typing import Final

# Ordinary reads are of an event or a few, and are not looked at.
SHORT_BYTES: Final = 2_048
SLICE_BYTES: Final = 65_536
# Of a slice: some 85 ordinary events, each in a chunk of its own. The dearest have two each.
LINE_ENDS_MAX: Final = 512
LEAST_BYTES: Final = 1_024
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


def slice_end(data: bytes, at: int) -> int:
    """Where the slice that begins at `at` ends."""
    size = min(SLICE_BYTES, len(data) - at)
    while size > LEAST_BYTES and _line_ends(data, at, at + size) > LINE_ENDS_MAX:
        size //= 2
    return at + size


def _line_ends(data: bytes, begin: int, end: int) -> int:
    return data.count(b"\n", begin, end) + data.count(b"\r", begin, end)
