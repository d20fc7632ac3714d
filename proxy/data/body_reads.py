"""Limits how much of all bodies is read in one turn of the loop.

The loop reads a connection again for as long as it fills the buffer, up to 32 times (libuv), which
are 8 MiB. So a client that sends fast would hold up all others for 5 ms in every turn, and ten such
clients for 50. Beyond the limit a client is read no more in this turn. From then on one client goes
on in each turn, and the holders of clients take turns.
"""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol

from penstock.proxy.wire.rota import Rota
from penstock.proxy.wire.turn_budget import TurnBudget

# Of all clients together: 0.4 ms, most of it the kernel's copy. An ordinary long prompt is less.
TURN_BYTES: Final = 1_048_576
# So much costs less than watching it.
UNWATCHED_BYTES: Final = 65_536


class Sender(Protocol):
    """A client's connection whose body comes."""

    @property
    def holder(self) -> str: ...


class BodyReads:
    """Decides which clients are read on in this turn."""

    __slots__ = ("_budget", "_rota")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, now: Callable[[], float] = monotonic
    ) -> None:
        self._budget = TurnBudget(loop, TURN_BYTES, UNWATCHED_BYTES)
        self._rota = Rota(loop, now=now)  # one step a turn

    def count(self, sender: Sender, transport: asyncio.Transport, size_bytes: int) -> None:
        """Count a read of a body that goes on. Beyond the limit the sender waits for its turn."""
        self._budget.spend(size_bytes)
        if self._budget.left <= 0 and not transport.is_closing():
            transport.pause_reading()
            self._rota.add(sender.holder, _Wait(transport).step)


class _Wait:
    """A transport that is read again in its turn."""

    __slots__ = ("_transport",)

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def step(self) -> bool:
        if not self._transport.is_closing():
            self._transport.resume_reading()
        return False
