"""Clients in a loop each, who ask again as soon as they have their answer; what all of them get."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

import aiohttp

DONE: Final = b"data: [DONE]"
# A client that was refused comes back after this, whatever it was told.
REFUSED_S: Final = 0.5


class ClosedLoop:
    """`clients` streams at a time. `body` makes what a client asks for at a turn of it."""

    def __init__(self, clients: int, body: Callable[[int, int], dict[str, Any]]) -> None:
        self._clients = clients
        self._body = body
        self.answers = 0  # whole ones
        self.tokens = 0  # that were shown
        self.refused = 0

    async def play(self, url: str, time_s: float) -> None:
        """All at once, for so long. Whoever has no answer at the end leaves."""
        connector = aiohttp.TCPConnector(limit=0)
        headers = {"x-request-id": "loop"}  # which probes have not
        async with aiohttp.ClientSession(url, connector=connector, headers=headers) as session:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(time_s), asyncio.TaskGroup() as group:
                    for client in range(self._clients):
                        group.create_task(self._ask_all_the_time(session, client))

    async def _ask_all_the_time(self, session: aiohttp.ClientSession, client: int) -> None:
        turn = 0
        while True:
            if await self._ask(session, self._body(client, turn)):
                turn += 1
            else:
                await asyncio.sleep(REFUSED_S)

    async def _ask(self, session: aiohttp.ClientSession, body: dict[str, Any]) -> bool:
        async with session.post("/v1/chat/completions", json={**body, "stream": True}) as response:
            if response.status != 200:
                self.refused += 1
                return False
            async for line in response.content:
                if line.startswith(DONE):
                    self.answers += 1
                elif b'"content":"' in line and b'"role"' not in line:
                    self.tokens += 1
                elif line.startswith(b'data: {"error"'):
                    self.refused += 1
                    return False
            return True
