"""Unfinished heads that are longer than usual. All of them together share a limited memory.

Clients without a key can send them. The memory is shared as that of bodies: when it is full, the
longest head of the holder with the most bytes is dropped.
"""

from heapq import nlargest
from operator import attrgetter
from typing import Final

from penstock.proxy.data.client import Client
from penstock.proxy.data.room import CLEARED, Bodies

LONG_BYTES: Final = 4_096
LONG_HEADS_BYTES_MAX: Final = 33_554_432


class LongHeads(Bodies):
    """The long heads of all connections."""

    __slots__ = ()

    def hold(self, size_bytes: int, client: Client) -> bool:
        """Count the received part of a head. False when there is no room for it."""
        if size_bytes <= LONG_BYTES:
            return True
        if not self.take(size_bytes - client.body_bytes, LONG_HEADS_BYTES_MAX, client):
            return False
        client.body_bytes = size_bytes
        self.receiving[client] = None
        return True

    def clear(self) -> None:
        """Memory is short: drop the largest."""
        slow = self.only_held(self._clock())
        for client in nlargest(CLEARED, slow, key=attrgetter("body_bytes")):
            client.give_way()
