"""Clients that keep asking while servers come and go, and count what they were told."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp

from tests.e2e.process import Penstock
from tests.vllm.server import MODEL
from tests.vllm.test_dialects import BODIES, ENDS

CLIENTS: Final = 8
TOKEN_IDS: Final[dict[str, Any]] = {"prompt": [11, 12, 13], "max_tokens": 24}


class Load:
    """Streamed and plain requests of every dialect, in turn, from several clients."""

    def __init__(self, penstock: Penstock) -> None:
        self._penstock = penstock
        self._over = False
        self.told: Counter[str] = Counter()
        self.errors: list[str] = []

    async def run(self, worker: int) -> None:
        kinds = [*BODIES.items(), ("/v1/completions", TOKEN_IDS)]
        count = worker
        async with aiohttp.ClientSession() as session:
            while not self._over:
                path, fields = kinds[count % len(kinds)]
                stream = count // len(kinds) % 2 == 0
                count += 1
                body = {"model": MODEL, "ignore_eos": True, "stream": stream} | fields
                await self._ask(session, path, body)

    async def _ask(self, session: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> None:
        got = b""
        try:
            async with session.post(self._penstock.url + path, json=body) as answer:
                async for piece in answer.content.iter_any():
                    got += piece
        except aiohttp.ClientError as error:
            if got:  # after the first token: said, and not an end
                self.told["broken"] += 1
            else:
                self.errors.append(f"{path} {type(error).__name__}")
            return
        if answer.status != 200:
            self.errors.append(f"{path} {answer.status} {got[:200]!r}")
        elif body["stream"] and not got.endswith(ENDS[path]):
            self.errors.append(f"{path} ended as {got[-200:]!r}")
        elif b'"abort"' in got or got.startswith(b"data: [DONE]"):
            self.errors.append(f"{path} given up: {got[-200:]!r}")
        elif b'{"error"' in got or b"event: error" in got:
            self.told["broken"] += 1
        else:
            self.told[answer.headers["x-penstock-backend"]] += 1

    def stop(self) -> None:
        self._over = True

    async def more_from(self, backend: str, requests: int, within_s: float = 30.0) -> None:
        """Wait until a backend has served so many more."""
        wanted = self.told[backend] + requests
        async with asyncio.timeout(within_s):
            while self.told[backend] < wanted:
                await asyncio.sleep(0.05)


@asynccontextmanager
async def load(penstock: Penstock) -> AsyncIterator[Load]:
    """Run the clients inside the block; all of them have finished after it."""
    running = Load(penstock)
    workers = [asyncio.create_task(running.run(worker)) for worker in range(CLIENTS)]
    try:
        yield running
    finally:
        running.stop()
        await asyncio.gather(*workers)
