"""Takes a read of very many small chunks in slices.

A chunk costs as much as a hundred bytes of a chunk, so a read of 256 KiB may block the loop for
too long. While slices wait, nothing more is read from the client.

In one turn of the loop all clients together get a limited number of chunks at once. If hundreds of
clients send reads of a thousand chunks at the same moment, most of these reads wait, too.
"""

import asyncio
from typing import Final, Protocol

from penstock.proxy.wire.rota import Rota
from penstock.proxy.wire.turn_budget import TurnBudget
from penstock.proxy.wire.waiting import Reader, Waiting

# How many line ends all clients together may have taken at once in a turn. A chunk has two.
LINE_ENDS_MAX: Final = 2_048
# A read with so few is taken at once and not counted: waiting would cost more than taking it.
FEW_LINE_ENDS: Final = 24
# A slice of ordinary chunks has at most LINE_ENDS_MAX line ends. A slice of only line ends is
# malformed, and refused, or lies within one chunk, where line ends cost nothing.
SLICE_BYTES: Final = 4_096


class Receiver(Reader, Protocol):
    """A client's connection that gets a read of its own in slices."""

    @property
    def holder(self) -> str: ...
    def receive(self, data: bytes, /) -> None: ...


class ManyChunks:
    """The rest of one read. Its receiver gets it in slices, whatever they contain."""

    __slots__ = ("_left", "_receiver", "_transport", "_waiting")

    def __init__(
        self, data: bytes, receiver: Receiver, transport: asyncio.Transport, waiting: Waiting
    ) -> None:
        self._left = data
        self._receiver = receiver
        self._transport = transport
        self._waiting = waiting
        waiting.add(receiver, receiver.holder, len(data))
        transport.pause_reading()

    def step(self) -> bool:
        """Take a slice. Returns whether there is more."""
        if not self._transport.is_closing():
            data, self._left = self._left[:SLICE_BYTES], self._left[SLICE_BYTES:]
            self._receiver.receive(data)
        closing = self._transport.is_closing()
        if self._left and not closing:
            return True
        self._waiting.done(self._receiver)
        if not closing:
            self._transport.resume_reading()
        return False


class ChunkReads:
    """Decides which reads of chunks are taken at once and which in slices."""

    __slots__ = ("_budget", "_rota", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, rota: Rota, waiting: Waiting) -> None:
        self._rota = rota
        self._waiting = waiting
        self._budget = TurnBudget(loop, LINE_ENDS_MAX)

    def sliced(self, receiver: Receiver, transport: asyncio.Transport, data: bytes) -> bool:
        """Whether a read has so many chunks that it is taken in slices."""
        ends = _line_ends(data)
        if ends <= FEW_LINE_ENDS:
            return False
        if ends <= self._budget.left:
            self._budget.spend(ends)
            return False
        self._rota.add(receiver.holder, ManyChunks(data, receiver, transport, self._waiting).step)
        return True


def _line_ends(data: bytes) -> int:
    """The number of line ends, or a number above the limit if there are too many."""
    ends = 0
    for at in range(0, len(data), SLICE_BYTES):
        ends += data.count(b"\n", at, at + SLICE_BYTES)
        if ends > LINE_ENDS_MAX:  # counting costs most where there are most
            break
    return ends
