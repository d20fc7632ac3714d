"""Limits how much of all bodies is read in one turn of the loop.

The loop reads a connection again for as long as it fills the buffer, up to 32 times (libuv), which
are 8 MiB. So a client that sends fast would hold up all others for 5 ms in every turn, and ten such
clients for 50. When the limit is reached, all senders are paused, before they are read. Then one
goes on in the next turn. After a turn in which the limit was not reached twice as many go on,
because silent senders wait among the others. The holders of clients take turns.

A client that sends much beside its running request, or after it was refused, counts too. A body
that comes in one read with its head is read once, whatever others send.
"""

import asyncio
from collections import deque
from typing import Final, Protocol

from penstock.proxy.wire.turn_budget import TurnBudget

# Of all clients together: 0.4 ms, most of it the kernel's copy. An ordinary long prompt is less.
TURN_BYTES: Final = 1_048_576
# Reading this much costs less than the call of the loop that renews the budget.
UNWATCHED_BYTES: Final = 65_536
# To resume one takes a microsecond or two.
RESUMED_MAX: Final = 128


class Sender(Protocol):
    """A client's connection whose body comes."""

    @property
    def holder(self) -> str: ...

    @property
    def sends(self) -> bool:
        """Whether more of its body is to come."""


class BodyReads:
    """Decides which senders are read on in this turn."""

    __slots__ = ("_budget", "_holders", "_loop", "_read_on", "_resumed", "_spent", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._budget = TurnBudget(loop, TURN_BYTES, UNWATCHED_BYTES)
        self._spent = False  # the limit was reached since senders were resumed
        self._resumed = 1  # how many were, in the last turn
        self._read_on: dict[Sender, asyncio.Transport] = {}  # those that do not wait
        self._waiting: dict[str, deque[tuple[Sender, asyncio.Transport]]] = {}  # by holder
        self._holders: deque[str] = deque()  # in the order of their turns

    def __len__(self) -> int:
        """How many senders may be paused when the limit is reached."""
        return len(self._read_on)

    def begin(self, sender: Sender, transport: asyncio.Transport) -> None:
        """From now on pause this sender when the limit is reached."""
        self._read_on[sender] = transport

    def end(self, sender: Sender) -> None:
        """Nothing more comes of it, or others decide now when it is read."""
        self._read_on.pop(sender, None)

    def count(self, size_bytes: int) -> None:
        """Count a read. When the limit is reached, all senders wait for their turns."""
        self._budget.spend(size_bytes)
        if self._budget.left > 0:
            return
        self._spent = True
        if not self._holders:
            self._loop.call_soon(self._go_on)
        senders, self._read_on = self._read_on, {}
        for sender, transport in senders.items():
            if not transport.is_closing():
                transport.pause_reading()
                self._wait(sender, transport)

    def _wait(self, sender: Sender, transport: asyncio.Transport) -> None:
        waiting = self._waiting.get(sender.holder)
        if waiting is None:
            waiting = self._waiting[sender.holder] = deque()
            self._holders.append(sender.holder)
        waiting.append((sender, transport))

    def _go_on(self) -> None:
        """Resume some. A sender that has closed takes nobody's place."""
        self._resumed = 1 if self._spent else min(2 * self._resumed, RESUMED_MAX)
        self._spent = False
        left = self._resumed
        while self._holders and left:
            holder = self._holders.popleft()
            sender, transport = self._waiting[holder].popleft()
            if self._waiting[holder]:
                self._holders.append(holder)
            else:
                del self._waiting[holder]
            if not transport.is_closing():
                left -= 1
                if sender.sends:
                    self.begin(sender, transport)
                transport.resume_reading()
        if self._holders:
            self._loop.call_soon(self._go_on)
