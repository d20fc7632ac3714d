"""Engines whose URL has a path, penstock below a path, and clients with a wrong base URL."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest

from penstock.bench.sim.connection import Reply, Request
from penstock.bench.sim.server import SimServer
from tests.e2e.process import Serve, Simulate
from tests.e2e.request import BODIES, CHAT, ask

PREFIX = "/serve/llama"


class Ingress(SimServer):
    """A simulated server that answers below a path only."""

    astray: tuple[str, ...] = ()

    def dispatch(self, request: Request, reply: Reply) -> None:
        if request.target.startswith(PREFIX + "/"):
            request.target = request.target.removeprefix(PREFIX)
            super().dispatch(request, reply)
        else:
            self.astray += (request.target,)
            reply.whole(404, b"{}")


@pytest.fixture
async def ingress() -> AsyncIterator[Ingress]:
    server = Ingress(profile="instant", model="llama")
    await server.start()
    yield server
    await server.stop()


@pytest.mark.parametrize("slash", ["", "/"])
async def test_everything_is_asked_below_the_path_of_a_url(
    ingress: Ingress, serve: Serve, slash: str
) -> None:
    health = {"deep": {"interval_s": 0.2}}
    penstock = await serve([ingress.url + PREFIX + slash], health=health)
    listed = await ask(penstock, "/v1/models", method="GET")
    assert [card["id"] for card in listed.json["data"]] == ["llama"]
    for path, body in BODIES.items():
        got = await ask(penstock, path, body | {"model": "llama"})
        assert got.status == 200, path
        if path == "/v1/responses":
            stored = f"/v1/responses/{got.json['id']}"
            assert (await ask(penstock, stored, method="GET")).status == 200
    await penstock.until(lambda listing: "deep" in listing[0]["last_probe"], 5)
    (backend,) = await penstock.backends()
    assert (backend["state"], backend["url"]) == ("ready", ingress.url + PREFIX)
    await penstock.until(lambda listing: listing[0]["engine"] is not None, 10)  # its metrics
    assert not ingress.astray


async def test_penstock_below_a_path(simulate: Simulate, serve: Serve) -> None:
    listen = {"host": "127.0.0.1", "port": 0, "prefix": "/llm"}
    penstock = await serve(await simulate(), listen=listen)
    url = penstock.url + "/llm"
    body: Any = {"model": "sim-model", "messages": CHAT["messages"], "max_tokens": 3}
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="k") as gpt:
        assert (await gpt.chat.completions.create(**body)).choices
        assert [model.id async for model in gpt.models.list()] == ["sim-model"]
    async with anthropic.AsyncAnthropic(base_url=url, api_key="k") as claude:
        assert (await claude.messages.create(**body)).content
    for path in ("/llm", "/llm/", "/llm/health", "/llm/v1/models?limit=1"):
        assert (await ask(penstock, path, method="GET")).status == 200
    for path in ("/v1/models", "/health", "/", "/llmx/health"):
        assert (await ask(penstock, path, method="GET")).status == 404
    got = await ask(penstock, "/v1/completions", BODIES["/v1/completions"])
    assert "Did you mean /llm/v1/completions?" in got.json["error"]["message"]
    await asyncio.sleep(0.3)
    assert penstock.access_lines[0]["path"] == "/v1/chat/completions"
