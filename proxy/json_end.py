"""Whether JSON that goes by in pieces has come to its end.

For answers without a length that are too large to hold: they last until the connection
closes, and a close that comes early looks the same. Brackets outside strings tell.
"""

from typing import Final

_NOT_TOLD: Final = bytes(set(range(256)) - set(b'"[]{}'))


class JsonEnd:
    """Counts the brackets that are open."""

    __slots__ = ("_depth", "_escaped", "_quoted")

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = False
        self._escaped = False  # the last piece ended within an escape

    def feed(self, piece: bytes) -> None:
        """Take the next piece."""
        if self._escaped:
            piece = piece[1:]
        self._escaped = False
        if b"\\" in piece:
            # Whatever else is escaped looks like nothing that counts.
            piece = piece.replace(b"\\\\", b"__").replace(b'\\"', b"__")
            self._escaped = piece.endswith(b"\\")
        parts = piece.translate(None, _NOT_TOLD).split(b'"')
        plain = b"".join(parts[self._quoted :: 2])
        self._quoted ^= len(parts) % 2 == 0
        opened = plain.count(b"[") + plain.count(b"{")
        self._depth += 2 * opened - len(plain)

    @property
    def reached(self) -> bool:
        """Whether all that was opened is closed."""
        return self._depth == 0 and not self._quoted
