"""Routes by what a classifier says, from the outside; and one that is of no use."""

import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import orjson
import pytest
from aiohttp import web

from penstock.balancing.labels import IN_A_ROW
from penstock.bench.sim.server import SimServer
from tests.certificates import Files, server_context
from tests.e2e.forked import run
from tests.e2e.process import Penstock, Serve, Simulate, pool_of
from tests.e2e.request import ask


class Classifier:
    """Labels short texts `simple`, longer ones `hard`."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.heads: list[dict[str, str]] = []
        self.port = 0
        self._runner: web.AppRunner | None = None

    @property
    def settings(self) -> dict[str, Any]:
        return {"url": f"http://127.0.0.1:{self.port}/classify", "deadline_ms": 300}

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        """Listen; after a stop on the same port."""
        app = web.Application()
        app.router.add_post("/classify", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(
            self._runner, "127.0.0.1", self.port, reuse_address=True, ssl_context=tls
        )
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        text = orjson.loads(await request.read())["text"]
        self.texts.append(text)
        self.heads.append({name.lower(): value for name, value in request.headers.items()})
        return web.json_response({"label": "simple" if len(text) < 80 else "hard"})


CHAT: Final = "/v1/chat/completions"
SECRET: Final = "hunter2 asks"
LONG: Final = "and so on, " * 20
ROUTES: Final[list[dict[str, Any]]] = [
    {"name": "plain", "match": {"model": "plain"}, "to": [{"pool": "large", "model": "llama"}]},
    {"name": "simple", "match": {"label": "simple"}, "to": [{"pool": "small", "model": "qwen"}]},
    {"name": "rest", "to": [{"pool": "large", "model": "llama"}]},
]


@pytest.fixture
async def classifier() -> AsyncIterator[Classifier]:
    server = Classifier()
    await server.start()
    yield server
    await server.stop()


async def start(simulate: Simulate, serve: Serve, server: Classifier, /, **config: Any) -> Penstock:
    servers: list[SimServer] = []
    pools = []
    for name, model in (("small", "qwen"), ("large", "llama")):
        (backend,) = await simulate(1, model=model)
        servers.append(backend)
        pools.append(pool_of(name, {f"{name}-0": backend}))
    asked = server.settings
    return await serve(servers, **{"pools": pools, "routes": ROUTES, "classifier": asked} | config)


def body(text: str, model: str = "any") -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 4}


async def model_of(penstock: Penstock, text: str, tenant: str = "", model: str = "any") -> str:
    """Which model answers."""
    keys = {"authorization": f"Bearer key-of-{tenant}-0123456789"} if tenant else {}
    got = await ask(penstock, CHAT, body(text, model), **keys)
    assert got.status == 200, got.body
    return got.headers["x-penstock-model"]


async def results(penstock: Penstock) -> dict[str, int]:
    found = {}
    for line in (await penstock.metrics()).splitlines():
        if line.startswith("penstock_labels_total{"):
            found[line.partition('"')[2].partition('"')[0]] = int(float(line.split()[-1]))
    return found


async def test_labels_choose_the_model(
    simulate: Simulate, serve: Serve, classifier: Classifier
) -> None:
    penstock = await start(simulate, serve, classifier)
    assert await model_of(penstock, SECRET) == "qwen"
    assert await model_of(penstock, SECRET + LONG) == "llama"
    assert await model_of(penstock, SECRET) == "qwen"
    assert await model_of(penstock, SECRET, model="plain") == "llama"
    assert classifier.texts == [SECRET, SECRET + LONG]
    assert await results(penstock) == {"asked": 2, "cached": 1}
    # Nothing else goes there, and what went there is told nowhere.
    told = {"host", "accept", "accept-encoding", "user-agent", "content-type", "content-length"}
    assert all(set(head) == told for head in classifier.heads)
    log = b"".join(penstock.log) + orjson.dumps(penstock.access_lines)
    assert b"hunter2" not in log + (await penstock.metrics()).encode()


async def test_a_classifier_with_https_is_verified(
    simulate: Simulate, serve: Serve, classifier: Classifier, files: Files
) -> None:
    await classifier.stop()
    await classifier.start(server_context())
    asked = classifier.settings | {"deadline_ms": 2_000}
    asked["url"] = asked["url"].replace("http:", "https:")
    stranger = await start(simulate, serve, classifier, classifier=asked)
    for number in range(IN_A_ROW):
        assert await model_of(stranger, f"q{number}") == "llama"
    assert b"reason=untrusted" in b"".join(stranger.log)
    assert classifier.texts == []
    trusting = {"SSL_CERT_FILE": str(files.ca)}
    penstock = await start(simulate, serve, classifier, classifier=asked, environment=trusting)
    assert await model_of(penstock, "Hi") == "qwen"


async def test_explain_takes_a_label_and_asks_for_none(
    simulate: Simulate, serve: Serve, classifier: Classifier, tmp_path: Path
) -> None:
    penstock = await start(simulate, serve, classifier)
    file = tmp_path / "body.json"
    file.write_bytes(orjson.dumps(body("Hi")))
    told = await run("explain", str(file), "--admin", penstock.admin_url)
    assert "route simple does not count: it has no label" in told.out
    assert "the classifier would be asked" in told.out
    told = await run("explain", str(file), "--label", "simple", "--admin", penstock.admin_url)
    assert "route simple counts: pool small, model qwen" in told.out
    assert "would be asked" not in told.out
    told = await run("explain", str(file), "--label", "odd", "--admin", penstock.admin_url)
    assert 'route simple does not count: the label is "odd", not simple' in told.out
    file.write_bytes(orjson.dumps(body("Hi", "plain")))
    told = await run("explain", str(file), "--admin", penstock.admin_url)
    assert "would be asked" not in told.out
    assert classifier.texts == []
