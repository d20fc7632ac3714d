"""Endpoints through a real process: each path, the models and stored responses."""

from typing import Any

import pytest

from tests.e2e.process import Serve, Simulate
from tests.e2e.request import BODIES, CHAT, ask, one

PAIR = {"model": "sim-model", "query": "water", "documents": ["a river", "a lake"]}
TEXT = {"model": "sim-model", "input": "water"}


PLAIN: dict[str, dict[str, Any]] = {
    "/v1/embeddings": TEXT,
    "/pooling": TEXT,
    "/classify": TEXT,
    "/score": {"text_1": "a", "text_2": ["b", "c"]},
    "/v1/score": {"text_1": "a", "text_2": "b"},
    "/rerank": PAIR,
    "/v1/rerank": PAIR,
    "/v2/rerank": PAIR | {"top_n": 1},
    "/tokenize": {"model": "sim-model", "prompt": "running water"},
    "/detokenize": {"model": "sim-model", "tokens": [258, 259]},
    "/v1/messages/count_tokens": CHAT,
}


async def test_endpoints_of_plain_json(simulate: Simulate, serve: Serve) -> None:
    server, penstock = await one(simulate, serve)
    for path, body in PLAIN.items():
        server.seen.clear()
        got, direct = [await ask(to, path, body) for to in (penstock, server)]
        assert (got.status, got.body) == (200, direct.body)
        assert [request.path for request in server.seen] == [path, path]


async def test_audio_goes_up_as_multipart(simulate: Simulate, serve: Serve) -> None:
    """The simulated server has no translations: its own 404 comes back, not one of ours."""
    server, penstock = await one(simulate, serve)
    part = b'--b--\r\ncontent-disposition: form-data; name="file"\r\n\r\n'
    body = part + bytes(range(256)) * 2_000 + b"\r\n--b----\r\n"
    form = 'multipart/form-data; boundary="b--"'
    for path, status in (("/v1/audio/transcriptions", 200), ("/v1/audio/translations", 404)):
        got, direct = [await ask(to, path, body, content_type=form) for to in (penstock, server)]
        assert (got.status, got.body) == (status, direct.body)
        seen = server.seen[-2]
        assert (seen.body, seen.header("content-type")) == (body, form)


async def test_models_of_all_pools_are_listed_and_found(simulate: Simulate, serve: Serve) -> None:
    servers = [
        *await simulate(1, model="red"),
        *await simulate(2, model="blue"),
        *await simulate(1, model="green"),
    ]
    backends = [{"name": f"s{i}", "url": server.url} for i, server in enumerate(servers)]
    pools = [
        {"name": "mixed", "backends": backends[:3]},
        {"name": "other", "backends": backends[3:]},
    ]
    penstock = await serve(servers, pools=pools)
    listed = await ask(penstock, "/v1/models", method="GET")
    assert [card["id"] for card in listed.json["data"]] == ["red", "blue", "green"]
    direct = await ask(servers[0], "/v1/models", method="GET")
    assert listed.json["data"][0] == direct.json["data"][0]
    for model, allowed in (("red", {"s0"}), ("blue", {"s1", "s2"}), ("green", {"s3"})):
        for stream in (False, True):
            body = CHAT | {"model": model, "stream": stream}
            got = await ask(penstock, "/v1/chat/completions", body)
            assert got.status == 200
            assert got.headers["x-penstock-backend"] in allowed


async def test_a_model_that_nobody_serves(simulate: Simulate, serve: Serve) -> None:
    server, penstock = await one(simulate, serve)
    got = await ask(penstock, "/v1/chat/completions", CHAT | {"model": "gpt-0"})
    assert (got.status, got.json["error"]["code"]) == (404, "model_not_found")
    assert got.json["error"]["param"] == "model"
    got = await ask(penstock, "/v1/messages", CHAT | {"model": "gpt-0"})
    assert (got.status, got.json["error"]["type"]) == (404, "not_found_error")
    assert not server.seen


async def test_health_and_head(simulate: Simulate, serve: Serve) -> None:
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


@pytest.mark.parametrize("count", [1, 5])
async def test_a_stored_response_is_found_where_it_was_made(
    simulate: Simulate, serve: Serve, count: int
) -> None:
    servers = await simulate(count)
    penstock = await serve(servers)
    for i in range(2 * count):
        body = BODIES["/v1/responses"]
        made = await ask(penstock, "/v1/responses", body, x_request_id=f"id-{i}")
        path = f"/v1/responses/{made.json['id']}"
        got = await ask(penstock, path, method="GET")
        assert (got.status, got.body) == (200, made.body)
        assert got.headers["x-penstock-backend"] == made.headers["x-penstock-backend"]
        refused = await ask(penstock, path + "/cancel")
        assert (refused.status, refused.json["error"]["code"]) == (400, 400)
    got = await ask(penstock, "/v1/responses/resp_none", method="GET")
    assert (got.status, got.json["error"]["code"]) == (404, "invalid_request")
    assert sum(backend["failures_total"] for backend in await penstock.backends()) == 0


async def test_a_response_continues_where_the_previous_was_made(
    simulate: Simulate, serve: Serve
) -> None:
    servers = await simulate(3)
    penstock = await serve(servers)
    body = BODIES["/v1/responses"]
    for i in range(6):
        made = await ask(penstock, "/v1/responses", body, x_request_id=f"first-{i}")
        more = body | {"previous_response_id": made.json["id"]}
        got = await ask(penstock, "/v1/responses", more, x_request_id=f"then-{i}")
        assert (got.status, got.json.get("previous_response_id")) == (200, made.json["id"])
        assert got.headers["x-penstock-backend"] == made.headers["x-penstock-backend"]


async def test_further_paths_go_to_the_first_pool(simulate: Simulate, serve: Serve) -> None:
    servers = [*await simulate(1, model="red"), *await simulate(1, model="blue")]
    pools = [
        {"name": f"pool-{i}", "backends": [{"name": f"s{i}", "url": server.url}]}
        for i, server in enumerate(servers)
    ]
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
