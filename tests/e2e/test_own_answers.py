"""What penstock answers by itself, and what it adds to answers."""

import asyncio
from typing import Any

import anthropic
import openai
import pytest

from tests.e2e.process import Serve, Simulate
from tests.e2e.raw_backend import RawBackend, answer
from tests.e2e.request import ask
from tests.e2e.wire import Client, Guard, request

NAME = "org/model-8B"


async def test_one_model_is_told_by_its_id(simulate: Simulate, serve: Serve) -> None:
    penstock = await serve(await simulate(2, model=NAME))
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


async def test_no_list_of_models_while_everything_is_down(simulate: Simulate, serve: Serve) -> None:
    (server,) = await simulate()
    penstock = await serve([server])
    assert (await ask(penstock, "/v1/models", method="GET")).json["data"]
    server.faults.set("refuse")
    await penstock.until(lambda listing: listing[0]["state"] == "ejected", 5)
    for path in ("/v1/models", "/v1/models/sim-model"):
        got = await ask(penstock, path, method="GET")
        assert (got.status, got.json["error"]["code"]) == (503, "no_backend")
        assert int(got.headers["retry-after"]) >= 1


async def test_models_are_listed_where_only_clients_have_the_key_of_the_engines(
    simulate: Simulate, serve: Serve
) -> None:
    servers = await simulate(model=NAME, api_key="sk-of-a-client-0123456789")
    pool = {"forward_authorization": "client", "models": [NAME]}
    penstock = await serve(servers, pool=pool)
    key = "sk-of-a-client-0123456789"
    async with openai.AsyncOpenAI(base_url=penstock.url + "/v1", api_key=key) as gpt:
        assert [each.id async for each in gpt.models.list()] == [NAME]
        assert (await gpt.models.retrieve(NAME)).id == NAME
        said = await gpt.completions.create(model=NAME, prompt="Rivers?", max_tokens=3)
        assert said.choices[0].text


async def test_an_unknown_model_is_named_in_print_and_cut(guard: Guard) -> None:
    _, penstock = await guard()
    wrong: Any = {"gpt-0": "`gpt-0`", "a\n`b": "`a\\n'b`", "x" * 5_000: "x" * 96 + "...`"}
    for model, told in wrong.items():
        got = await ask(penstock, "/v1/completions", {"model": model, "prompt": "x"})
        assert got.status == 404
        assert told in got.json["error"]["message"]
        assert len(got.json["error"]["message"]) < 250


async def test_anthropics_sdk_finds_the_request_id(simulate: Simulate, serve: Serve) -> None:
    penstock = await serve(await simulate())
    body: Any = {"model": "sim-model", "max_tokens": 3}
    messages: Any = [{"role": "user", "content": "Rivers?"}]
    async with anthropic.AsyncAnthropic(base_url=penstock.url, api_key="k") as claude:
        said = await claude.messages.create(**body, messages=messages)
        assert said._request_id
        with pytest.raises(anthropic.NotFoundError) as error:
            await claude.messages.create(**body | {"model": "gpt-0"}, messages=messages)
        assert error.value.request_id
    await asyncio.sleep(0.3)
    told = [line["request_id"] for line in penstock.access_lines]
    assert told == [said._request_id, error.value.request_id]


async def test_anthropics_sdk_lists_models(simulate: Simulate, serve: Serve) -> None:
    penstock = await serve(await simulate(model=NAME))
    async with anthropic.AsyncAnthropic(base_url=penstock.url, api_key="k") as claude:
        listed = [model async for model in claude.models.list()]
        assert [(model.type, model.display_name) for model in listed] == [("model", NAME)]
        assert (await claude.models.retrieve(NAME)).created_at == listed[0].created_at
        with pytest.raises(anthropic.NotFoundError):
            await claude.models.retrieve("gpt-0")


async def test_the_name_of_the_backend_can_stay_untold(simulate: Simulate, serve: Serve) -> None:
    listen = {"host": "127.0.0.1", "port": 0}
    for told in (True, False):
        penstock = await serve(await simulate(), listen=listen | {"backend_header": told})
        for body in ({"prompt": "x", "max_tokens": 2}, {"prompt": "x", "max_tokens": -1}):
            got = await ask(penstock, "/v1/completions", body)
            assert ("x-penstock-backend" in got.headers) is told
            assert got.headers["x-penstock-attempts"] == "1"


async def test_head_of_a_path_that_is_got(serve: Serve) -> None:
    backend = RawBackend()
    await backend.start()
    penstock = await serve([backend.url], paths=["GET /info"])
    large = b"x" * 100_000
    chunked = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"
    for steps in (
        (answer(b'{"a":1}'),),
        (answer(large),),
        (chunked + b"3\r\nabc\r\n", 0.05, b"3\r\ndef\r\n0\r\n\r\n"),
    ):
        backend.expect(steps)
        got = await ask(penstock, "/info", method="HEAD")
        assert (got.status, got.body) == (200, b"")
        assert backend.arrived[0].startswith(b"GET /info ")
    backend.expect()
    raw = request(method=b"HEAD", path=b"/info", body=None)
    client = await Client.open(penstock, raw + raw.replace(b"Host", b"Connection: close\r\nHost"))
    told = await client.rest(3.0)
    assert told is not None
    assert told.count(b"HTTP/1.1 200") == 2
    assert told.endswith(b"\r\n\r\n")
    client.close()
    await asyncio.sleep(0.3)
    assert {line["method"] for line in penstock.access_lines} == {"HEAD"}
    await backend.stop()


async def test_far_too_many_requests_ahead_end_the_connection_after_the_answer(
    guard: Guard,
) -> None:
    server, penstock = await guard("steady-50")
    body = b'{"prompt": "x", "max_tokens": 50}'
    client = await Client.open(penstock, request(body=body))
    for _ in range(20):
        client.send(request() * 100)
        await asyncio.sleep(0.02)
    got = await client.answer(10)
    assert (got.status, got.headers["connection"]) == (200, "close")
    assert await client.rest(4.0) is not None
    assert len(server.seen) == 1
    # Whoever leaves after that is noticed.
    client = await Client.open(penstock, request(body=body.replace(b"50", b"5000")))
    client.send(request() * 4_000)
    await penstock.until(lambda listing: listing[0]["requests_in_flight"] == 1, 5)
    client.close()
    await penstock.until_at_rest()
