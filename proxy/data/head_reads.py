"""Limits how many heads are read at once in a turn of the loop. The others wait for their turn.

A head is read, and often answered, in the call that brings it. libuv looks for more events before
it lets timers and writes run, up to 48 times in a row while 1,024 connections have something to
read. So a thousand busy clients without a key could stop all streams for seconds. A connection that
waits is not read, so the loop finds nothing there.
"""

import asyncio
from typing import Final, Protocol

from penstock.proxy.data.long_heads import LONG_BYTES
from penstock.proxy.wire.rota import Rota
from penstock.proxy.wire.turn_budget import TurnBudget
from penstock.proxy.wire.waiting import Reader, Waiting

# A small request takes some 50 us to its end, so all of them together 6 ms.
HEADS_MAX: Final = 128
# Reading so many bytes of a head takes about as long again.
HEAD_BYTES: Final = 4_096


class HeadReader(Reader, Protocol):
    """A client's connection that waits with a head."""

    def read_later(self) -> bool:
        """Read what waited. False: there is no more to do."""


class HeadReads:
    """Decides which heads are read at once."""

    __slots__ = ("_budget", "_rota", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, rota: Rota, waiting: Waiting) -> None:
        self._rota = rota
        self._waiting = waiting
        self._budget = TurnBudget(loop, HEADS_MAX, unwatched=HEADS_MAX // 2)

    @property
    def full(self) -> bool:
        """Whether the next head must wait."""
        return self._budget.left <= 0

    def count(self, size_bytes: int) -> None:
        """So much of a head is read now."""
        self._budget.spend(1 + size_bytes // HEAD_BYTES)

    def wait(
        self, reader: HeadReader, name: str, transport: asyncio.Transport, size_bytes: int
    ) -> None:
        """Read it when its turn comes: that of `name`, a tenant, an address, or all without a key.

        `size_bytes`: what it holds meanwhile.
        """
        if size_bytes > LONG_BYTES:  # shorter ones are not counted while they come, either
            self._waiting.add(reader, name, size_bytes)
        transport.pause_reading()
        self._rota.add(name, reader.read_later)

    def go_on(self, reader: HeadReader, transport: asyncio.Transport) -> None:
        """Its turn has come."""
        self._waiting.done(reader)
        if not transport.is_closing():
            transport.resume_reading()
