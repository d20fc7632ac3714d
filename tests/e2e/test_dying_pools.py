"""A pool dies under load: its route's fall-back takes over, and nothing is multiplied."""

import asyncio
from typing import Any

import aiohttp

from penstock.bench.sim.server import SimServer
from tests.e2e.process import Penstock, Serve, Simulate
from tests.e2e.request import CHAT

ROUTE: dict[str, Any] = {
    "name": "small",
    "match": {"model": "gpt-small"},
    "to": [{"pool": "small", "model": "qwen"}],
    "fallbacks": [{"pool": "large", "model": "llama"}],
}
CLIENTS = 40
ASKED = CHAT | {"model": "gpt-small", "stream": True, "max_tokens": 20}


class Crowd:
    """Clients that ask again and again, until they are told to stop."""

    def __init__(self, penstock: Penstock) -> None:
        self._url = f"{penstock.url}/v1/chat/completions"
        self.stopped = False
        self.whole = 0
        self.by_model: dict[str, int] = {}
        self.broken_later = 0
        self.errors: list[tuple[int, bytes, str]] = []

    async def run(self) -> None:
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(self._ask(session))

    async def _ask(self, session: aiohttp.ClientSession) -> None:
        while not self.stopped:
            body = b""
            async with session.post(self._url, json=ASKED) as answer:
                try:
                    async for data in answer.content.iter_any():
                        body += data
                except aiohttp.ClientError:
                    pass
                attempts = answer.headers.get("x-penstock-attempts", "0")
                if b"[DONE]" in body:
                    self.whole += 1
                    model = answer.headers.get("x-penstock-model", "")
                    self.by_model[model] = self.by_model.get(model, 0) + 1
                elif b'"content"' in body:
                    self.broken_later += 1
                else:
                    self.errors.append((answer.status, body, attempts))


async def fleet(simulate: Simulate, serve: Serve) -> tuple[list[SimServer], SimServer, Penstock]:
    small = await simulate(2, model="qwen", profile="default")
    (large,) = await simulate(1, model="llama", profile="default")
    pools = [
        {
            "name": "small",
            "backends": [{"name": f"s{i}", "url": s.url} for i, s in enumerate(small)],
        },
        {"name": "large", "backends": [{"name": "l0", "url": large.url}]},
    ]
    admission = {"enabled": False}  # one engine for three: else it refuses for load, rightly
    servers = [*small, large]
    return small, large, await serve(servers, pools=pools, routes=[ROUTE], admission=admission)


async def test_no_client_sees_an_error_before_its_first_token(
    simulate: Simulate, serve: Serve
) -> None:
    small, _, penstock = await fleet(simulate, serve)
    crowd = Crowd(penstock)
    running = asyncio.create_task(crowd.run())
    await asyncio.sleep(1.5)
    assert set(crowd.by_model) == {"qwen"}
    for server in small:
        await server.stop()
    await asyncio.sleep(2.5)
    crowd.stopped = True
    await running
    assert not crowd.errors
    assert crowd.by_model["llama"] > CLIENTS
    assert crowd.broken_later <= CLIENTS  # those past their first token: told so, each once


async def test_with_both_dead_there_is_one_error_and_no_more_attempts(
    simulate: Simulate, serve: Serve
) -> None:
    small, large, penstock = await fleet(simulate, serve)
    crowd = Crowd(penstock)
    running = asyncio.create_task(crowd.run())
    await asyncio.sleep(1.0)
    for server in (*small, large):
        await server.stop()
    await asyncio.sleep(0.3)
    crowd.stopped = True
    await running
    assert crowd.errors
    assert {status for status, _, _ in crowd.errors} <= {502, 503}
    assert all(body.count(b'"error"') == 1 for _, body, _ in crowd.errors)
    # Three, and one more where a closed connection took it and it was sent again.
    assert max(int(attempts) for _, _, attempts in crowd.errors) <= 4
