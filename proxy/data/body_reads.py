"""Limits how much of all bodies is read in one turn of the loop.

The loop reads a connection again for as long as it fills the buffer, up to 32 times (libuv), which
are 8 MiB. So a client that sends fast would hold up all others for 5 ms in every turn, and ten such
clients for 50. Beyond the limit no body is read on in this turn. From then on one of the clients
goes on in each turn, and the holders of clients take turns.
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

    @property
    def sends(self) -> bool:
        """Whether more of its body is to come."""


class BodyReads:
    """Decides whose body is read on in this turn."""

    __slots__ = ("_budget", "_read_on", "_rota")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, now: Callable[[], float] = monotonic
    ) -> None:
        self._budget = TurnBudget(loop, TURN_BYTES, UNWATCHED_BYTES)
        self._rota = Rota(loop, now=now)  # one step a turn
        self._read_on: dict[Sender, asyncio.Transport] = {}  # those that do not wait

    def __len__(self) -> int:
        return len(self._read_on)

    def begin(self, sender: Sender, transport: asyncio.Transport) -> None:
        """A body comes, or goes on to come after others took its read in slices."""
        self._read_on[sender] = transport

    def end(self, sender: Sender) -> None:
        """Nothing more comes, or others decide now when it is read."""
        self._read_on.pop(sender, None)

    def count(self, size_bytes: int) -> None:
        """Count a read. Beyond the limit all senders wait for their turns."""
        self._budget.spend(size_bytes)
        if self._budget.left > 0:
            return
        waiting, self._read_on = self._read_on, {}
        for sender, transport in waiting.items():
            if not transport.is_closing():
                transport.pause_reading()
                self._rota.add(sender.holder, _Wait(self, sender, transport).step)


class _Wait:
    """A sender that is read again in its turn."""

    __slots__ = ("_reads", "_sender", "_transport")

    def __init__(self, reads: BodyReads, sender: Sender, transport: asyncio.Transport) -> None:
        self._reads = reads
        self._sender = sender
        self._transport = transport

    def step(self) -> bool:
        if not self._transport.is_closing():
            if self._sender.sends:
                self._reads.begin(self._sender, self._transport)
            self._transport.resume_reading()
        return False
