"""Remembers what was found of short bytes before: most messages have the same few lines.

A full table is cleared. The usual entries soon return, and invented ones do not. So whoever fills
it costs others one more look, and no memory.
"""

from typing import Final, Generic, TypeVar

V = TypeVar("V")

KEY_BYTES_MAX: Final = 128


class Remembered(Generic[V]):
    """At most `entries_max` values, by keys of at most KEY_BYTES_MAX bytes."""

    __slots__ = ("_entries_max", "_known")

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._known: dict[bytes, V] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: bytes) -> V | None:
        return self._known.get(key)

    def put(self, key: bytes, value: V) -> None:
        """Remember a value, unless its key is long."""
        if len(key) > KEY_BYTES_MAX:
            return
        if len(self._known) >= self._entries_max:
            self._known.clear()
        self._known[key] = value
