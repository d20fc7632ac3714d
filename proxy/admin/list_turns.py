"""Long lists are made one after another: each takes some of every turn of the loop.

Who has left meanwhile gets none, and a bounded number waits.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

WAITING_MAX: Final = 16


class Crowded(Exception):
    """Too many wait for such a list already."""


class ListTurns:
    """The turns of one kind of list."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._waiting = 0

    @asynccontextmanager
    async def turn(self, request: web.Request) -> AsyncIterator[None]:
        """Wait for a turn. Raises Crowded, and ConnectionResetError if the client has left."""
        if self._waiting >= WAITING_MAX:
            raise Crowded
        self._waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self._waiting -= 1
        try:
            if request.transport is None or request.transport.is_closing():
                raise ConnectionResetError
            yield
        finally:
            self._lock.release()
