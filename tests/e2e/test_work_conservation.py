"""A server that has room for all its clients serves as much through penstock as without it.

The same clients ask a server itself, and then a fresh one through penstock with its defaults, for
the same time. Requests that wait in vain, while their backend could serve them, would show.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

import aiohttp
import pytest

from tests.e2e.process import Serve, StartSim

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


pytestmark = [pytest.mark.alone, pytest.mark.timeout(60)]
TIME_S: Final = 5.0
# Clients, penstock and servers share a CPU with whatever else runs. Alone it is 0.97 or more.
SHARE_MIN: Final = 0.9
# Some 2 s of thoughts, and 13 ms of prefill for each prompt.
THINKS: Final = ("--profile", "8b-1xh100", "--hidden-tokens", "150:250", "--answer-tokens", "8:16")


def loop(clients: int, prompt_tokens: int) -> ClosedLoop:
    """Prompts that share no beginning; nobody states how long an answer may be."""

    def body(client: int, turn: int) -> dict[str, Any]:
        content = f"{client} {turn} " + "and " * prompt_tokens
        return {"messages": [{"role": "user", "content": content}]}

    return ClosedLoop(clients, body)


def share_of(what: str, through: ClosedLoop, direct: ClosedLoop) -> float:
    """What share of the direct rate came through penstock; says both."""
    had, could = getattr(through, what), getattr(direct, what)
    print(
        f"\n{what}/s: {had / TIME_S:.1f} through, {could / TIME_S:.1f} direct, "
        f"share {had / could:.3f}, {through.refused} refused"
    )
    assert not direct.refused
    return float(had / could)


# What is compared, the server, clients, and tokens of a prompt.
CASES: Final[dict[str, tuple[str, tuple[str, ...], int, int]]] = {
    # 64 answers of 60 to 200 tokens: at most two thirds of the cache, and a third on average.
    "a cache with room for all answers": (
        "tokens",
        ("--profile", "70b-4xa100", "--kv-tokens", "30000", "--answer-tokens", "60:200"),
        64,
        100,
    ),
    "hidden thoughts after a role": ("answers", (*THINKS, "--early-role"), 40, 600),
    # As with a call of a tool, which its parser holds until it is whole.
    "hidden thoughts": ("answers", THINKS, 40, 600),
}


@pytest.mark.parametrize("name", CASES)
async def test_as_much_through_penstock(serve: Serve, sim_process: StartSim, name: str) -> None:
    what, flags, clients, prompt_tokens = CASES[name]
    direct, through = (loop(clients, prompt_tokens) for _ in range(2))
    server = await sim_process(*flags)
    await direct.play(server.url, TIME_S)
    await server.kill()
    penstock = await serve([(await sim_process(*flags)).url])
    # Of an engine that has told nothing yet, nobody can know that it has begun with all.
    await penstock.until(lambda listing: listing[0]["engine"] is not None, 5.0)
    await through.play(penstock.url, TIME_S)
    await penstock.until_at_rest()
    assert share_of(what, through, direct) >= SHARE_MIN
    assert not through.refused
