"""Paths that are no API of their own: one for all of them, several chats, texts, items."""

from typing import Any

import aiohttp
import orjson
import pytest

from penstock.bench.sim.server import SimServer
from tests.e2e.process import Penstock, Serve, Simulate
from tests.e2e.request import MESSAGES, Got, ask

MODEL = {"model": "sim-model"}
CHAT = {"messages": MESSAGES, "max_tokens": 20}
PROMPT = {"prompt": "Once upon a time", "max_tokens": 20}
BATCH = MODEL | {"messages": [MESSAGES] * 5, "max_tokens": 7}
TEXTS = MODEL | {"texts": ["a river", "a lake"], "input_type": "search_document"}
ITEMS = MODEL | {"query": "Is it water? ", "items": ["a river", "a road"], "label_token_ids": [5]}
ADAPTER = "x_amzn_sagemaker_adapter_identifier"
STREAM = {"stream": True}
WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}


async def one(simulate: Simulate, serve: Serve, **options: Any) -> tuple[SimServer, Penstock]:
    (server,) = await simulate(clock=lambda: 1_700_000_000.0, **options)
    return server, await serve([server])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions/batch", BATCH),
        ("/v2/embed", TEXTS),
        ("/generative_scoring", ITEMS),
        ("/invocations", MODEL | CHAT),
        ("/invocations", MODEL | PROMPT),
        ("/invocations", MODEL | {"input": "a river"}),
    ],
)
async def test_an_answer_is_the_backends(
    simulate: Simulate, serve: Serve, path: str, body: dict[str, Any]
) -> None:
    server, penstock = await one(simulate, serve)
    got, direct = [await ask(to, path, body) for to in (penstock, server)]
    assert (got.status, got.body) == (200, direct.body)
    assert [request.path for request in server.seen] == [path, path]
    told = direct.json
    usage = told.get("usage") or {"prompt_tokens": told["meta"]["billed_units"]["input_tokens"]}
    counted = f'penstock_prompt_tokens_total{{pool="default"}} {usage["prompt_tokens"]}'
    assert counted in (await penstock.metrics()).replace(".0\n", "\n")


@pytest.mark.parametrize("fields", [CHAT, PROMPT])
@pytest.mark.parametrize("options", [STREAM, WITH_USAGE])
async def test_a_stream_invoked_is_that_of_its_api(
    simulate: Simulate, serve: Serve, fields: dict[str, Any], options: dict[str, Any]
) -> None:
    """Its usage is asked for, counted, and hidden from whoever did not ask."""
    server, penstock = await one(simulate, serve)
    got = await ask(penstock, "/invocations", fields | options)
    direct = await ask(server, "/invocations", fields | WITH_USAGE)
    events = [event + b"\n\n" for event in direct.body.split(b"\n\n")[:-1]]
    asked = "stream_options" in options
    assert got.status == 200
    assert got.body == b"".join(e for e in events if asked or b'"choices":[]' not in e)
    assert orjson.loads(server.seen[0].body)["stream_options"]["include_usage"] is True
    metrics = await penstock.metrics()
    assert 'penstock_completion_tokens_total{pool="default"} 20' in metrics


@pytest.mark.parametrize("fields", [CHAT, PROMPT])
async def test_a_stream_invoked_that_ends_early_is_broken(
    simulate: Simulate, serve: Serve, fields: dict[str, Any]
) -> None:
    server, penstock = await one(simulate, serve)
    server.faults.set("cut_mid_stream", tokens=3, times=1)
    with pytest.raises(aiohttp.ClientPayloadError):
        await ask(penstock, "/invocations", fields | STREAM)


async def test_models_decide_the_pool(simulate: Simulate, serve: Serve) -> None:
    """On /invocations the head names the model to vLLM; where it does not, the body does to us."""
    red, blue = [(await simulate(1, model=model))[0] for model in ("red", "blue")]
    pools = [
        {"name": name, "models": [name], "backends": [{"name": name, "url": server.url}]}
        for name, server in (("red", red), ("blue", blue))
    ]
    penstock = await serve([red, blue], pools=pools)

    def served(got: Got) -> tuple[int, str | None]:
        return got.status, got.headers.get("x-penstock-backend")

    for path, body in (
        ("/v1/chat/completions/batch", BATCH),
        ("/v2/embed", TEXTS),
        ("/generative_scoring", ITEMS),
        ("/invocations", CHAT),
    ):
        for model in ("blue", "red"):
            assert served(await ask(penstock, path, body | {"model": model})) == (200, model)
        assert (await ask(penstock, path, body | {"model": "green"})).status == 404
    adapter = {ADAPTER: "blue"}
    for fields in (CHAT, PROMPT, {"input": "a river"}):
        for named in (fields, fields | {"model": "red"}):
            assert served(await ask(penstock, "/invocations", named, **adapter)) == (200, "blue")
    got = await ask(penstock, "/invocations", CHAT, **{ADAPTER: "green"})
    assert (got.status, got.json["error"]["code"]) == (404, "model_not_found")
    # Elsewhere vLLM does not read it.
    chat = CHAT | {"model": "red"}
    assert served(await ask(penstock, "/v1/chat/completions", chat, **adapter)) == (200, "red")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_usage_that_a_backend_gives_unasked_is_passed(
    simulate: Simulate, serve: Serve, path: str
) -> None:
    """--enable-force-include-usage: the client sees what it would see without a proxy."""
    server, penstock = await one(simulate, serve, force_usage=True)
    fields = MODEL | (CHAT if "chat" in path else PROMPT)
    for options in (STREAM, WITH_USAGE):
        got, direct = [await ask(to, path, fields | options) for to in (penstock, server)]
        assert got.body == direct.body
        assert b'"choices":[],"usage":' in got.body
