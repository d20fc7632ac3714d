"""What penstock answers itself, and which headers it adds for browsers, proxies and SDKs."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.proxy.data.local_answers import models_told
from penstock.proxy.errors.client import ModelNotFound
from tests.unit.proxy.data.playbook import (
    COMMENT,
    END,
    STREAM,
    Play,
    chat,
    chunk,
    plain,
    pool,
    token,
)

KEYED = [{"name": "one", "keys": [{"key": "sk-1"}]}]
ORIGIN = b"origin: http://localhost:5173\r\n"


@pytest.fixture
def play() -> Play:
    return Play(1)


def fields_of(written: bytes) -> dict[str, str]:
    """The last value of each header of the last answer."""
    head = written[written.rindex(b"HTTP/1.1 ") :].partition(b"\r\n\r\n")[0].decode()
    lines = (line.partition(": ") for line in head.split("\r\n")[1:])
    return {name: value for name, _, value in lines}


def got(play: Play, line: bytes, *fields: bytes) -> tuple[int, dict[str, str], Any]:
    """What a request without a body is answered: status, headers and JSON."""
    raw = b"\r\n".join([line + b" HTTP/1.1", b"host: x", *fields, b"", b""])
    client = play.connects()
    client.sends(raw)
    head, _, body = client.written.partition(b"\r\n\r\n")
    client.closes()
    return int(head[9:12]), fields_of(client.written), orjson.loads(body) if body else None


# Event streams through other proxies -------------------------------------------------------------


def test_proxies_are_told_to_buffer_no_events(play: Play) -> None:
    play.client.sends(chat())
    play["b1"].sends(STREAM, token("a"), END)
    told = fields_of(play.client.written)
    assert (told["x-accel-buffering"], told["cache-control"]) == ("no", "no-cache")


def test_what_the_backend_says_of_buffering_stays(play: Play) -> None:
    own = b"\r\nX-Accel-Buffering: yes\r\nCache-Control: no-store\r\ntransfer"
    play.client.sends(chat())
    play["b1"].sends(STREAM.replace(b"\r\ntransfer", own), token("a"), END)
    written = play.client.written.lower()
    assert written.count(b"x-accel-buffering") == written.count(b"cache-control") == 1
    told = fields_of(play.client.written)
    assert (told["x-accel-buffering"], told["cache-control"]) == ("yes", "no-store")


def test_a_held_stream_is_not_buffered_and_plain_answers_may_be() -> None:
    play = Play(1, timeouts={"hold_s": 1})
    play.client.sends(chat())
    play["b1"].sends(STREAM, COMMENT)
    play.passes(1.5)
    assert fields_of(play.client.written)["x-accel-buffering"] == "no"
    play["b1"].sends(token("a"), chunk(b"data: [DONE]\n\n"), END)
    play.client.sends(chat(stream=False))
    play["b1"].sends(plain("200 OK"))
    assert "x-accel-buffering" not in fields_of(play.client.written)
    play.close()


# Browsers ----------------------------------------------------------------------------------------


def test_pages_may_read_every_header_that_penstock_adds() -> None:
    play = Play(1, listen={"cors_origins": ["http://localhost:5173"]})
    _, told, _ = got(play, b"GET /v1/models", ORIGIN[:-2])
    exposed = told["access-control-expose-headers"].split(", ")
    page = Path("docs/http.md").read_text()
    table = page.partition("## Response headers")[2].partition("##")[0]
    listed = {line.split("`")[1] for line in table.splitlines() if line.startswith("| `")}
    listed |= {"retry-after", "retry-after-ms", "x-should-retry", "request-id"}
    listed |= {"x-ratelimit-remaining-tokens", "anthropic-ratelimit-requests-reset"}
    assert listed <= set(exposed)
    assert not any("*" in name for name in exposed)


@pytest.mark.parametrize(
    ("allowed", "origin", "passes"),
    [
        ("http://localhost:*", b"http://localhost:5173", True),
        ("http://localhost:*", b"http://localhost", True),
        ("http://localhost:*", b"https://localhost:5173", False),
        ("http://localhost:*", b"http://localhost.example:5173", False),
        ("http://localhost:*", b"http://localhost:5173.example", False),
        ("http://[::1]:*", b"http://[::1]:80", True),
        ("http://[::1]:*", b"http://[::1]", True),
        ("http://localhost:5173", b"http://localhost:5174", False),
    ],
)
def test_an_origin_may_have_any_port(allowed: str, origin: bytes, passes: bool) -> None:
    play = Play(1, listen={"cors_origins": [allowed]})
    _, told, _ = got(play, b"GET /health", b"origin: " + origin)
    assert (told.get("access-control-allow-origin") == origin.decode()) is passes
    assert ("access-control-allow-origin" in told) is passes
    play.close()


# Clients that try what is not served -------------------------------------------------------------


@pytest.mark.parametrize("path", [b"/v1/responses", b"/v1/realtime", b"/nowhere"])
def test_websocket_is_refused_so_that_clients_use_http(play: Play, path: bytes) -> None:
    offer = (b"connection: keep-alive, Upgrade", b"upgrade: WebSocket")
    status, _, body = got(play, b"GET " + path, *offer)
    assert (status, body["error"]["code"]) == (426, "unsupported")


def test_an_offer_of_another_protocol_is_ignored(play: Play) -> None:
    offer = (b"connection: upgrade", b"upgrade: h2c")
    assert got(play, b"GET /health", *offer)[0] == 200


@pytest.mark.parametrize(
    ("line", "allow"),
    [
        (b"GET /v1/chat/completions", "POST"),
        (b"POST /v1/models", "GET, HEAD"),
        (b"DELETE /v1/models/a/b", "GET, HEAD"),
        (b"PUT /v1/responses/resp_1", "GET"),
        (b"GET /v1/responses/resp_1/cancel", "POST"),
        (b"POST /health", "GET, HEAD"),
        (b"POST /", "GET, HEAD"),
        (b"POST /info", "GET, HEAD"),
    ],
)
def test_a_path_with_another_method_names_the_right_one(line: bytes, allow: str) -> None:
    play = Play(1, paths=["GET /info"])
    status, told, body = got(play, line)
    assert (status, told["allow"], body["error"]["code"]) == (405, allow, "method_not_allowed")
    assert allow.split(",")[0] in body["error"]["message"]


def test_the_root_is_open_and_says_only_that_it_is_reached() -> None:
    play = Play(1, tenants=KEYED)
    assert got(play, b"HEAD /")[0] == 200
    status, _, body = got(play, b"GET /")
    assert (status, list(body)) == (200, ["message"])
    assert got(play, b"POST /")[0] == 401
    play.plane.draining = True
    assert got(play, b"HEAD /")[0] == 200
    play.close()


# Models as Anthropic's SDK reads them ------------------------------------------------------------

CARD = b'{"id":"a/b","object":"model","created":1700000000,"max_model_len":4096}'


def test_anthropics_clients_get_models_in_their_shape(play: Play) -> None:
    play.backends[0].models = {"a/b": CARD, "c": b'{"id":"c"}'}
    version = b"anthropic-version: 2023-06-01"
    _, _, listed = got(play, b"GET /v1/models", version)
    assert [card["id"] for card in listed["data"]] == ["a/b", "c"]
    assert (listed["first_id"], listed["last_id"], listed["has_more"]) == ("a/b", "c", False)
    _, _, one = got(play, b"GET /v1/models/a/b", version)
    assert one == listed["data"][0]
    assert (one["type"], one["display_name"]) == ("model", "a/b")
    assert one["created_at"] == "1970-01-01T00:00:00Z"
    status, _, error = got(play, b"GET /v1/models/d", version)
    assert (status, error["type"], error["error"]["type"]) == (404, "error", "not_found_error")
    assert got(play, b"GET /v1/models/a/b")[2] == orjson.loads(CARD)
    play.backends[0].models = {}
    assert got(play, b"GET /v1/models", version)[2] == {
        "data": [],
        "has_more": False,
        "first_id": None,
        "last_id": None,
    }


def play_of(models: list[str], told: dict[str, bytes] | None) -> Play:
    play = Play(pools=[pool("p", 1, 2, models=models)])
    for each in play.backends:
        each.models = told
    return play


def ids(told: bytes) -> list[Any]:
    return [each["id"] for each in orjson.loads(told)["data"]]


@pytest.mark.parametrize(
    ("named", "told", "listed"),
    [
        (["a", "b"], None, ["a", "b"]),
        ([], None, []),
        (["a", "b"], {"a": b'{"id":"a"}'}, ["a"]),
        ([], {"c": b'{"id":"c"}'}, ["c"]),
    ],
)
def test_names_of_the_configuration_stand_in_for_a_list_that_cannot_be_read(
    named: list[str], told: dict[str, bytes] | None, listed: list[str]
) -> None:
    play = play_of(named, told)
    assert ids(models_told(b"/v1/models", play.plane.fleet.pools)) == listed


def test_a_named_model_has_a_card_for_those_who_may_ask_for_it() -> None:
    play = play_of(["org/a"], None)
    card = orjson.loads(models_told(b"/v1/models/org%2Fa", play.plane.fleet.pools))
    assert (card["id"], card["object"]) == ("org/a", "model")
    assert ids(models_told(b"/v1/models", play.plane.fleet.pools, {"other"})) == []
    with pytest.raises(ModelNotFound):
        models_told(b"/v1/models/b", play.plane.fleet.pools)
