"""Lets large bodies go one in a turn of the loop.

To give 16 MiB back takes the kernel a millisecond. A hundred of them end together when their
backend dies, or when the client that sent them leaves. Other bodies may use their room at once.
Their memory is freed later, one body in a turn.
"""

import asyncio
from collections import deque
from collections.abc import Sized
from typing import Final

LARGE_BYTES: Final = 1_048_576


class Freeing:
    """What is to be freed."""

    __slots__ = ("_held", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._held: deque[Sized] = deque()

    def __len__(self) -> int:
        return len(self._held)

    def add(self, held: Sized) -> None:
        """Hold it until its turn, if it is large. Everybody else should forget it now."""
        if len(held) < LARGE_BYTES:
            return
        if not self._held:
            self._loop.call_soon(self._free)
        self._held.append(held)

    def _free(self) -> None:
        self._held.popleft()
        if self._held:
            self._loop.call_soon(self._free)
