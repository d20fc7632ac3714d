"""Clients that ask all the time and count every request that did not get its whole answer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

from penstock.bench.sim.text import expected

PROMPT: Final = "Of gates and rivers"
TOKENS: Final = 5
TEXT: Final = expected(PROMPT, TOKENS)
DONE: Final = b"data: [DONE]\n\n"


class Traffic:
    """`clients` in a loop each: streams, plain answers, and plain ones on fresh connections.

    None tries again: what a proxy loses is seen.
    """

    def __init__(self, url: str, clients: int = 9) -> None:
        self._url = url
        self._clients = clients
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self.whole = 0
        self.retried = 0  # served by a second attempt
        self.slowest_s = 0.0
        self.failed: list[str] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._ask(i)) for i in range(self._clients)]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def until(self, whole: int) -> None:
        """Wait until so many requests were answered, or one was not."""
        while self.whole < whole and not self.failed:
            await asyncio.sleep(0.01)

    async def _ask(self, number: int) -> None:
        connector = aiohttp.TCPConnector(limit=0, force_close=number % 3 == 2)
        body = {"prompt": PROMPT, "max_tokens": TOKENS, "stream": number % 3 == 0}
        async with aiohttp.ClientSession(connector=connector) as session:
            while not self._stopping and len(self.failed) < 10:
                began_s = monotonic()
                try:
                    wrong = await self._one(session, body)
                except (aiohttp.ClientError, OSError, TimeoutError) as failure:
                    wrong = repr(failure)
                if wrong:
                    self.failed.append(f"{wrong} {body['stream']=} {number % 3=}")
                else:
                    self.whole += 1
                self.slowest_s = max(self.slowest_s, monotonic() - began_s)

    async def _one(self, session: aiohttp.ClientSession, body: dict[str, Any]) -> str:
        """What is wrong with one answer; empty when nothing is."""
        timeout = aiohttp.ClientTimeout(total=30)
        url = f"{self._url}/v1/completions"
        async with session.post(url, json=body, timeout=timeout) as answer:
            got = await answer.read()
            self.retried += answer.headers.get("x-penstock-attempts") == "2"
            if answer.status != 200:
                return f"{answer.status} {got[:200]!r}"
            if body["stream"]:
                whole = got.endswith(DONE) and got.count(b'"text":') == TOKENS
            else:
                whole = (await answer.json())["choices"][0]["text"] == TEXT
            return "" if whole else f"not whole: {got[-200:]!r}"


@contextlib.asynccontextmanager
async def going_on(*works: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """These run meanwhile."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
