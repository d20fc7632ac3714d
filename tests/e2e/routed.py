"""A proxy whose routes lead to three models, and a client that keeps every byte of its answers.

Each route answers for one name. What comes through it must be, byte for byte, what the same client
gets from the backend itself when it asks for the engine's own name.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

import httpx2
import orjson

from penstock.bench.sim.server import SimServer
from tests.e2e.process import Penstock, Serve, Simulate, pool_of
from tests.e2e.raw_backend import RawBackend, answer

REQUEST_ID: Final = {"x-request-id": "id-1"}  # ids of answers are made of it
MODELS: Final = ("llama-8b", "llama-9b", "qwen-small")
STABLE, NEXT, SMALL = MODELS
# The name that is asked for, and the models that may answer.
NAMES: Final = {
    STABLE: {STABLE},  # no route
    "gpt-alias": {STABLE},
    "gpt-split": {STABLE, NEXT},
    "gpt-dead": {SMALL},
    "gpt-failing": {SMALL},
}
FALLBACK: Final = [{"pool": SMALL, "model": SMALL, "on": ["no_backend", "errors"]}]
ROUTES: Final[list[dict[str, Any]]] = [
    {"name": "alias", "match": {"model": "gpt-alias"}, "to": [{"pool": STABLE, "model": STABLE}]},
    {
        "name": "split",
        "match": {"model": "gpt-split"},
        "to": [{"pool": STABLE, "model": STABLE}, {"pool": NEXT, "model": NEXT}],
    },
    {
        "name": "dead",
        "match": {"model": "gpt-dead"},
        "to": [{"pool": "dead", "model": "dead"}],
        "fallbacks": FALLBACK,
    },
    {
        "name": "failing",
        "match": {"model": "gpt-failing"},
        "to": [{"pool": "failing", "model": "failing"}],
        "fallbacks": FALLBACK,
    },
]


@dataclass
class Routed:
    """The proxy, and the servers behind it by their model."""

    penstock: Penstock
    servers: dict[str, SimServer]
    failing: RawBackend


async def start(simulate: Simulate, serve: Serve, failing: RawBackend) -> Routed:
    """A server of each model, one that refuses connections and one that answers 502."""
    servers: dict[str, SimServer] = {}
    for model in (*MODELS, "dead"):
        (servers[model],) = await simulate(model=model, clock=lambda: 1_700_000_000.0)
    servers["dead"].faults.set("refuse")
    failing.model = b"failing"
    failing.always = lambda _: (answer(b'{"error":"no"}', status=b"502 Bad Gateway"),)
    urls = {model: server.url for model, server in servers.items()} | {"failing": failing.url}
    pools = [pool_of(name, {f"{name}-0": url}, models=[name]) for name, url in urls.items()]
    penstock = await serve([], ready=4, pools=pools, routes=ROUTES)
    return Routed(penstock, servers, failing)


@dataclass
class Kept(httpx2.AsyncBaseTransport):
    """What a client of the SDKs sent and got, as it was."""

    inner: httpx2.AsyncHTTPTransport = field(
        default_factory=lambda: httpx2.AsyncHTTPTransport(verify=False)  # reading CAs takes 50 ms
    )
    sent: bytes = b""
    got: bytes = b""
    headers: httpx2.Headers = field(default_factory=httpx2.Headers)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.sent, self.got = await request.aread(), b""
        response = await self.inner.handle_async_request(request)
        self.headers = response.headers
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Tee(response.stream, self)
        return response

    async def aclose(self) -> None:
        await self.inner.aclose()


class _Tee(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, kept: Kept) -> None:
        self._stream = stream
        self._kept = kept

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._stream:
            self._kept.got += data
            yield data

    async def aclose(self) -> None:
        await self._stream.aclose()


def engine_got(server: SimServer) -> tuple[bytes, Any]:
    """The last body that a client of the server sent: its bytes, and what they say."""
    bodies = [each.body for each in server.seen if each.header("x-request-id")]
    return bodies[-1], orjson.loads(bodies[-1])
