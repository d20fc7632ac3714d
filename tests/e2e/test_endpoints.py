"""Endpoints and models through a real process, and what penstock answers by itself."""

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import orjson
import pytest

from penstock.bench.sim.connection import Reply, Request
from penstock.bench.sim.server import SimServer
from tests.e2e.process import Fleet, Serve, Simulate, pool_of
from tests.e2e.raw_backend import RawBackend, answer
from tests.e2e.request import BODIES, CHAT, MESSAGES, Got, ask, one
from tests.e2e.wire import Client, request

MODEL = {"model": "sim-model"}
CHAT_FIELDS = {"messages": MESSAGES, "max_tokens": 20}
PROMPT_FIELDS = {"prompt": "Once upon a time", "max_tokens": 20}
BATCH = MODEL | {"messages": [MESSAGES] * 5, "max_tokens": 7}
TEXTS = MODEL | {"texts": ["a river", "a lake"], "input_type": "search_document"}
ITEMS = MODEL | {"query": "Is it water? ", "items": ["a river", "a road"], "label_token_ids": [5]}
PAIR = MODEL | {"query": "water", "documents": ["a river", "a lake"]}
TEXT = MODEL | {"input": "water"}
PLAIN_BODIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/embeddings", TEXT),
    ("/pooling", TEXT),
    ("/classify", TEXT),
    ("/score", {"text_1": "a", "text_2": ["b", "c"]}),
    ("/v1/score", {"text_1": "a", "text_2": "b"}),
    ("/rerank", PAIR),
    ("/v1/rerank", PAIR),
    ("/v2/rerank", PAIR | {"top_n": 1}),
    ("/tokenize", MODEL | {"prompt": "running water"}),
    ("/detokenize", MODEL | {"tokens": [258, 259]}),
    ("/v1/messages/count_tokens", CHAT),
    ("/v1/chat/completions/batch", BATCH),
    ("/v2/embed", TEXTS),
    ("/generative_scoring", ITEMS),
    ("/invocations", MODEL | CHAT_FIELDS),
    ("/invocations", MODEL | PROMPT_FIELDS),
    ("/invocations", TEXT),
)


async def test_plain_json_passes_unchanged(simulate: Simulate, serve: Serve) -> None:
    server, penstock = await one(simulate, serve)
    for path, body in PLAIN_BODIES:
        server.seen.clear()
        got, direct = [await ask(to, path, body) for to in (penstock, server)]
        assert (got.status, got.body) == (200, direct.body)
        assert [request.path for request in server.seen] == [path, path]


async def test_head_and_health(simulate: Simulate, serve: Serve) -> None:
    server, penstock = await one(simulate, serve)
    for path in ("/health", "/v1/models"):
        whole = await ask(penstock, path, method="GET")
        bare = await ask(penstock, path, method="HEAD")
        assert (whole.status, bare.status, bare.body) == (200, 200, b"")
        assert bare.headers["content-length"] == whole.headers["content-length"]
    server.faults.set("refuse")
    await penstock.until(lambda listing: listing[0]["state"] == "ejected", 5)
    for path in ("/health", "/v1/models"):  # an empty list would be taken for the truth
        assert (await ask(penstock, path, method="GET")).status == 503


async def test_added_paths_go_to_the_first_pool(simulate: Simulate, serve: Serve) -> None:
    servers = [*await simulate(1, model="red"), *await simulate(1, model="blue")]
    pools = [pool_of(f"pool-{i}", {f"s{i}": server}) for i, server in enumerate(servers)]
    penstock = await serve(servers, pools=pools, paths=["GET /version", "POST /ping"])
    assert (await ask(penstock, "/version", method="GET")).json == {"version": "0.32.0"}
    for model in ("red", "blue", "green"):
        got = await ask(penstock, "/ping", {"model": model})
        assert (got.status, got.headers.get("x-penstock-backend")) == (200, "s0")
    for method, path, status, code in (
        ("POST", "/version", 405, "method_not_allowed"),
        ("GET", "/ping", 405, "method_not_allowed"),
        ("GET", "/version/", 404, "unknown_path"),
        ("GET", "/load", 404, "unknown_path"),
    ):
        got = await ask(penstock, path, method=method)
        assert (got.status, got.json["error"]["code"]) == (status, code)


ADAPTER = "x_amzn_sagemaker_adapter_identifier"


WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}


async def test_invocations_stream_like_their_api(simulate: Simulate, serve: Serve) -> None:
    """Its usage is asked for, counted, and hidden from whoever did not ask."""
    server, penstock = await one(simulate, serve)
    for fields in (CHAT_FIELDS, PROMPT_FIELDS):
        direct = await ask(server, "/invocations", fields | WITH_USAGE)
        hidden = [each for each in direct.body.split(b"\n\n") if b'"choices":[]' not in each]
        got = await ask(penstock, "/invocations", fields | WITH_USAGE)
        assert (got.status, got.body) == (200, direct.body)
        got = await ask(penstock, "/invocations", fields | {"stream": True})
        assert (got.status, got.body) == (200, b"\n\n".join(hidden))
        assert orjson.loads(server.seen[-1].body)["stream_options"]["include_usage"] is True
    metrics = await penstock.metrics()
    assert 'penstock_completion_tokens_total{pool="default"} 80' in metrics


async def test_models_choose_the_pool_on_every_path(simulate: Simulate, serve: Serve) -> None:
    """On /invocations the head names the model to vLLM; where it does not, the body does to us."""
    red, blue = [(await simulate(1, model=model))[0] for model in ("red", "blue")]
    pools = [
        pool_of("red", {"red": red}, models=["red"]),
        pool_of("blue", {"blue": blue}, models=["blue"]),
    ]
    penstock = await serve([red, blue], pools=pools)

    def served(got: Got) -> tuple[int, str | None]:
        return got.status, got.headers.get("x-penstock-backend")

    for path, body in (
        ("/v1/chat/completions/batch", BATCH),
        ("/v2/embed", TEXTS),
        ("/generative_scoring", ITEMS),
        ("/invocations", CHAT_FIELDS),
    ):
        for model in ("blue", "red"):
            assert served(await ask(penstock, path, body | {"model": model})) == (200, model)
        assert (await ask(penstock, path, body | {"model": "green"})).status == 404
    adapter = {ADAPTER: "blue"}
    for fields in (CHAT_FIELDS, PROMPT_FIELDS, {"input": "a river"}):
        for named in (fields, fields | {"model": "red"}):
            assert served(await ask(penstock, "/invocations", named, **adapter)) == (200, "blue")
    got = await ask(penstock, "/invocations", CHAT_FIELDS, **{ADAPTER: "green"})
    assert (got.status, got.json["error"]["code"]) == (404, "model_not_found")
    # Elsewhere vLLM does not read it.
    chat = CHAT_FIELDS | {"model": "red"}
    assert served(await ask(penstock, "/v1/chat/completions", chat, **adapter)) == (200, "red")


NAME = "org/model-8B"


async def test_one_model_is_found_by_its_id(fleet: Fleet) -> None:
    _, penstock = await fleet(2, model=NAME)
    for spelling in (NAME, "org%2Fmodel-8B"):
        got = await ask(penstock, f"/v1/models/{spelling}", method="GET")
        assert (got.status, got.json["id"]) == (200, NAME)
    got = await ask(penstock, "/v1/models/org", method="GET")
    assert (got.status, got.json["error"]["code"]) == (404, "model_not_found")
    assert (await ask(penstock, "/v1/models/" + NAME, method="HEAD")).status == 200
    assert (await ask(penstock, "/v1/models/" + NAME)).status == 405  # POST
    async with openai.AsyncOpenAI(base_url=penstock.url + "/v1", api_key="k") as gpt:
        assert (await gpt.models.retrieve(NAME)).id == NAME
        with pytest.raises(openai.NotFoundError):
            await gpt.models.retrieve("gpt-0")
    assert {line["path"] for line in penstock.access_lines} <= {"/v1/models/{id}", None}


async def test_anthropics_sdk_finds_the_request_id(fleet: Fleet) -> None:
    _, penstock = await fleet()
    body: Any = {"model": "sim-model", "max_tokens": 3}
    messages: Any = [{"role": "user", "content": "Rivers?"}]
    async with anthropic.AsyncAnthropic(base_url=penstock.url, api_key="k") as claude:
        said = await claude.messages.create(**body, messages=messages)
        assert said._request_id
        with pytest.raises(anthropic.NotFoundError) as error:
            await claude.messages.create(**body | {"model": "gpt-0"}, messages=messages)
        assert error.value.request_id
    told = [line["request_id"] for line in await penstock.lines(2)]
    assert told == [said._request_id, error.value.request_id]


async def test_the_backend_header_can_be_left_out(simulate: Simulate, serve: Serve) -> None:
    listen = {"host": "127.0.0.1", "port": 0}
    for told in (True, False):
        penstock = await serve(await simulate(), listen=listen | {"backend_header": told})
        for body in ({"prompt": "x", "max_tokens": 2}, {"prompt": "x", "max_tokens": -1}):
            got = await ask(penstock, "/v1/completions", body)
            assert ("x-penstock-backend" in got.headers) is told
            assert got.headers["x-penstock-attempts"] == "1"


async def test_head_of_proxied_paths(serve: Serve, raw_backend: RawBackend) -> None:
    penstock = await serve([raw_backend.url], paths=["GET /info"])
    large = b"x" * 100_000
    chunked = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"
    for steps in (
        (answer(b'{"a":1}'),),
        (answer(large),),
        (chunked + b"3\r\nabc\r\n", 0.05, b"3\r\ndef\r\n0\r\n\r\n"),
    ):
        raw_backend.expect(steps)
        got = await ask(penstock, "/info", method="HEAD")
        assert (got.status, got.body) == (200, b"")
        assert raw_backend.arrived[0].startswith(b"GET /info ")
    raw_backend.expect()
    raw = request(method=b"HEAD", path=b"/info", body=None)
    client = await Client.open(penstock, raw + raw.replace(b"Host", b"Connection: close\r\nHost"))
    told = await client.rest(3.0)
    assert told is not None
    assert told.count(b"HTTP/1.1 200") == 2
    assert told.endswith(b"\r\n\r\n")
    client.close()
    assert {line["method"] for line in await penstock.lines(5)} == {"HEAD"}


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


async def test_backends_below_a_path(ingress: Ingress, serve: Serve) -> None:
    for slash in ("", "/"):
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


async def test_penstock_below_a_path(fleet: Fleet) -> None:
    listen = {"host": "127.0.0.1", "port": 0, "prefix": "/llm"}
    _, penstock = await fleet(listen=listen)
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
    got = await ask(penstock, "/v1/completions")
    assert "Did you mean /llm/v1/completions?" in got.json["error"]["message"]
