"""The mark in a list. It stays on what it marks, wherever that goes.

Who drains a backend means this one, and not the row where it stood.
"""

from collections.abc import Hashable, Sequence


class Cursor:
    """`key`: of the marked entry. `top`: the number of the first row that is shown."""

    def __init__(self) -> None:
        self.key: Hashable = None
        self.top = 0
        self._at = 0

    def place(self, keys: Sequence[Hashable], rows: int) -> int:
        """Find the mark in a new list, and scroll so that it is seen. Returns its number.

        If the entry is gone, the one that took its place is marked.
        """
        try:
            self._at = keys.index(self.key)
        except ValueError:
            self._at = max(0, min(self._at, len(keys) - 1))
            self.key = keys[self._at] if keys else None
        self.top = max(0, min(self.top, self._at, len(keys) - rows), self._at - rows + 1)
        return self._at

    def move(self, keys: Sequence[Hashable], by: int) -> None:
        """Mark another entry, `by` further down."""
        if keys:
            self._at = max(0, min(self._at + by, len(keys) - 1))
            self.key = keys[self._at]
