"""Whether JSON that passes in pieces has come to its end.

For answers without a length that are too large to hold. They last until the connection closes, and
an early close looks the same. The brackets outside strings tell the difference.
"""

from typing import Final

_NOT_TOLD: Final = bytes(set(range(256)) - set(b'"[]{}'))


class JsonEnd:
    """Counts the open brackets."""

    __slots__ = ("_depth", "_escaped", "_quoted")

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = False
        self._escaped = False  # the last piece ended inside an escape

    def feed(self, piece: bytes) -> None:
        """Take the next piece."""
        if self._escaped:
            piece = piece[1:]
        self._escaped = False
        if b"\\" in piece:
            # Other escapes hold no character that counts.
            piece = piece.replace(b"\\\\", b"__").replace(b'\\"', b"__")
            self._escaped = piece.endswith(b"\\")
        parts = piece.translate(None, _NOT_TOLD).split(b'"')
        plain = b"".join(parts[self._quoted :: 2])
        self._quoted ^= len(parts) % 2 == 0
        opened = plain.count(b"[") + plain.count(b"{")
        self._depth += 2 * opened - len(plain)

    @property
    def reached(self) -> bool:
        """Whether everything that was opened is closed."""
        return self.inside(0)

    def inside(self, depth: int) -> bool:
        """Whether `depth` brackets are open here, outside a string."""
        return self._depth == depth and not self._quoted
