"""Routes from the outside: who answers for which name, and what clients and operators are told."""

import base64
from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.bench.sim.server import SimServer
from tests.e2e.forked import run
from tests.e2e.process import Penstock, Serve, Simulate
from tests.e2e.request import BODIES, CHAT, ask

ROUTES: list[dict[str, Any]] = [
    {"name": "gone", "match": {"model": "gpt-3*"}, "refuse": "Ask for gpt-small."},
    {
        "name": "with-tools",
        "match": {"model": "gpt-small", "needs": ["tools"]},
        "to": [{"pool": "large", "model": "llama"}],
    },
    {
        "name": "small",
        "match": {"model": "gpt-small"},
        "to": [{"pool": "small", "model": "qwen"}],
        "fallbacks": [{"pool": "large", "model": "llama"}],
    },
]
ASKED = CHAT | {"model": "gpt-small"}
FORM = (
    b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\ngpt-small\r\n'
    b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\r\n--b--\r\n'
)

Fleet = tuple[SimServer, SimServer, Penstock]


@pytest.fixture
async def fleet(simulate: Simulate, serve: Serve) -> Fleet:
    (small,) = await simulate(1, model="qwen")
    (large,) = await simulate(1, model="llama")
    pools = [
        {"name": "small", "backends": [{"name": "s0", "url": small.url}]},
        {"name": "large", "backends": [{"name": "l0", "url": large.url}]},
    ]
    return small, large, await serve([small, large], pools=pools, routes=ROUTES)


@pytest.mark.parametrize("path", BODIES)
async def test_an_alias_on_every_path(fleet: Fleet, path: str) -> None:
    small, _, penstock = fleet
    body = BODIES[path] | {"model": "gpt-small"}
    got = await ask(penstock, path, body)
    direct = await ask(small, path, body | {"model": "qwen"})
    assert (got.status, got.headers["x-penstock-model"]) == (200, "qwen")
    assert got.json["model"] == direct.json["model"] == "qwen"


async def test_an_alias_in_a_form(fleet: Fleet) -> None:
    small, _, penstock = fleet
    kind = "multipart/form-data; boundary=b"
    got = await ask(penstock, "/v1/audio/transcriptions", FORM, content_type=kind)
    assert got.headers["x-penstock-backend"] == "s0"
    assert b"qwen" in small.seen[-1].body
    assert b"gpt-small" not in small.seen[-1].body


async def test_what_is_asked_for_decides(fleet: Fleet) -> None:
    _, _, penstock = fleet
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    got = await ask(penstock, "/v1/chat/completions", ASKED | {"tools": tools})
    assert (got.headers["x-penstock-backend"], got.headers["x-penstock-model"]) == ("l0", "llama")


async def test_a_refusal(fleet: Fleet) -> None:
    _, _, penstock = fleet
    got = await ask(penstock, "/v1/chat/completions", CHAT | {"model": "gpt-3.5"})
    assert (got.status, got.json["error"]["code"]) == (403, "route_refused")
    assert got.json["error"]["message"] == "Ask for gpt-small."


async def test_names_are_listed_with_what_they_stand_for(fleet: Fleet) -> None:
    _, _, penstock = fleet
    got = await ask(penstock, "/v1/models", method="GET")
    cards = {each["id"]: each for each in got.json["data"]}
    assert set(cards) == {"qwen", "llama", "gpt-small"}
    assert cards["gpt-small"]["owned_by"] == "penstock"
    one = await ask(penstock, "/v1/models/gpt-small", method="GET")
    assert one.json == cards["gpt-small"]


async def test_a_pool_that_dies_under_its_requests(fleet: Fleet) -> None:
    small, _, penstock = fleet
    await small.stop()
    for _ in range(20):
        got = await ask(penstock, "/v1/chat/completions", ASKED)
        assert (got.status, got.headers["x-penstock-model"]) == (200, "llama")
    listed = await ask(penstock, "/v1/models", method="GET")
    assert "gpt-small" in {each["id"] for each in listed.json["data"]}
    lines = [each for each in penstock.access_lines if each["path"] == "/v1/chat/completions"]
    assert {each["route"] for each in lines} == {"small"}
    assert {each["fell_back"] for each in lines} <= {"errors", "no_backend"}


async def test_why_a_route_counts(fleet: Fleet, tmp_path: Any) -> None:
    """And where a request goes while the pool of its route serves nobody."""
    small, _, penstock = fleet
    file = tmp_path / "body.json"
    file.write_bytes(orjson.dumps(ASKED))
    told = await run("explain", str(file), "--admin", penstock.admin_url)
    assert told.status == 0, told.err
    assert "route with-tools does not count: it does not ask for tools" in told.out
    assert "route small counts: pool small, model qwen" in told.out
    await small.stop()
    await penstock.until(lambda listing: not listing[0]["can_serve"], 10)
    told = await run("explain", str(file), "--admin", penstock.admin_url)
    assert (told.status, "In the class" in told.out) == (0, True)
    assert "route small counts: pool large, model llama" in told.out


async def test_with_a_tokenizer_prompts_are_counted_before_they_are_routed(
    simulate: Simulate, serve: Serve, tmp_path: Path
) -> None:
    """Each byte is a token: four times as many as is estimated."""
    ranks = [b"%b %d" % (base64.b64encode(bytes([byte])), byte) for byte in range(256)]
    (tmp_path / "ranks").write_bytes(b"\n".join(ranks))
    servers = [(await simulate(1))[0] for _ in range(2)]
    pools = [
        {"name": name, "backends": [{"name": name, "url": server.url}]}
        for name, server in zip(("chat", "long"), servers, strict=True)
    ]
    routes: list[dict[str, Any]] = [
        {"name": "l", "match": {"prompt_tokens": {"min": 2_000}}, "to": [{"pool": "long"}]},
        {"name": "c", "to": [{"pool": "chat"}]},
    ]
    body = {"model": "sim-model", "prompt": "word " * 600, "max_tokens": 1}
    for tokens, wanted in (({}, "chat"), ({"estimator": "tiktoken", "file": "ranks"}, "long")):
        penstock = await serve(servers, pools=pools, routes=routes, tokens=tokens)
        got = await ask(penstock, "/v1/completions", body)
        assert (got.status, got.headers["x-penstock-backend"]) == (200, wanted)
