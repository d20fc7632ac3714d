"""One request as a client makes it, and a body for each dialect."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any, NamedTuple

import aiohttp
import orjson
from multidict import CIMultiDictProxy

from penstock.bench.sim.server import SimServer
from tests.e2e.process import Penstock, Serve, Simulate

MESSAGES = [{"role": "user", "content": "Tell me of rivers."}]
CHAT: dict[str, Any] = {"model": "sim-model", "messages": MESSAGES, "max_tokens": 20}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "sim-model", "prompt": "Once upon a time", "max_tokens": 20},
    "/v1/responses": {"model": "sim-model", "input": "Rivers?", "max_output_tokens": 20},
    "/v1/messages": CHAT,
}


class Got(NamedTuple):
    status: int
    headers: CIMultiDictProxy[str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


async def ask(
    to: Penstock | SimServer,
    path: str,
    body: bytes | dict[str, Any] | None = None,
    method: str = "POST",
    **headers: str,
) -> Got:
    """One request; header names are spelt with `_` for `-`."""
    fields = {"content-type": "application/json", "x-request-id": "id-1"}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    raw = orjson.dumps(body) if isinstance(body, dict) else body
    data = None if raw is None else BytesIO(raw)  # aiohttp warns of large bytes
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, to.url + path, data=data, headers=fields) as answer,
    ):
        return Got(answer.status, answer.headers, await answer.read())


async def fetch(url: str, method: str = "GET", **options: Any) -> Got:
    """Whatever a URL answers. `options` are aiohttp's."""
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, **options) as answer,
    ):
        return Got(answer.status, answer.headers, await answer.read())


async def one(simulate: Simulate, serve: Serve, **config: Any) -> tuple[SimServer, Penstock]:
    """One server whose clock stands still, and the proxy before it."""
    (server,) = await simulate(clock=lambda: 1_700_000_000.0)
    return server, await serve([server], **config)


@asynccontextmanager
async def stream(penstock: Penstock, **fields: Any) -> AsyncIterator[aiohttp.ClientResponse]:
    """A long streamed completion, past its first token."""
    body = {"prompt": "Once upon a time", "max_tokens": 5_000, "stream": True}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{penstock.url}/v1/completions", json=body | fields) as answer,
    ):
        assert answer.status == 200
        yield answer
