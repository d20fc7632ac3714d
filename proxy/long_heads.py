"""Heads that have not ended and are longer than most: all together have so much memory.

Strangers can send them. It is shared as that of bodies is: when there is no room, the longest
of whoever holds most gives way.
"""

from typing import Final

from proxy.room import Bodies, Guest

LONG_BYTES: Final = 4_096
LONG_HEADS_BYTES_MAX: Final = 33_554_432


class LongHeads(Bodies):
    """Those of all connections together."""

    __slots__ = ()

    def hold(self, size_bytes: int, guest: Guest) -> bool:
        """Count the head of which so much is here; False when there is no room for it."""
        if size_bytes <= LONG_BYTES:
            return True
        if not self.take(size_bytes - guest.body_bytes, LONG_HEADS_BYTES_MAX, guest):
            return False
        guest.body_bytes = size_bytes
        self.receiving[guest] = None
        return True
