"""A read of a great many small chunks, taken by turns.

A chunk costs as much as a hundred bytes of one, so that a read of 256 KiB may hold the loop for
longer than it should. No more is read meanwhile; the client is heard again when all is taken.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from proxy.rota import Rota

# Two of them are of one chunk.
LINE_ENDS_MAX: Final = 2_048
# A slice of ordinary chunks has no more line ends than that; one of nothing else is no chunk.
SLICE_BYTES: Final = 4_096


class Client(Protocol):
    """Whose chunks they are."""

    @property
    def holder(self) -> str: ...
    def receive(self, data: bytes, /) -> None: ...


class ManyChunks:
    """What is left of one read; `take` is given slices, whatever they turn out to be."""

    __slots__ = ("_left", "_take", "_transport")

    def __init__(
        self, data: bytes, take: Callable[[bytes], None], transport: asyncio.Transport
    ) -> None:
        self._left = data
        self._take = take
        self._transport = transport
        transport.pause_reading()

    def step(self) -> bool:
        """Take a slice; whether there is more."""
        if self._transport.is_closing():
            return False
        data, self._left = self._left[:SLICE_BYTES], self._left[SLICE_BYTES:]
        self._take(data)
        if self._transport.is_closing():
            return False
        if not self._left:
            self._transport.resume_reading()
        return bool(self._left)


def sliced(client: Client, transport: asyncio.Transport, rota: Rota, data: bytes) -> bool:
    """Whether a read is of so many that it is taken by slices."""
    if not _are_many(data):
        return False
    rota.add(client.holder, ManyChunks(data, client.receive, transport).step)
    return True


def _are_many(data: bytes) -> bool:
    ends = 0
    for at in range(0, len(data), SLICE_BYTES):
        ends += data.count(b"\n", at, at + SLICE_BYTES)
        if ends > LINE_ENDS_MAX:  # it costs most where there are most
            return True
    return False
