"""Bodies and paths that no backend should see, over raw sockets: each gets its promised status."""

import pytest

from tests.e2e.wire import (
    BODY,
    KEY,
    PROMPT,
    Client,
    Guard,
    request,
)

BAD_BODIES = {
    "empty": b"",
    "not JSON": b"prompt=" + PROMPT.encode(),
    "array": b'["' + PROMPT.encode() + b'"]',
    "string": b'"' + PROMPT.encode() + b'"',
    "null": b"null",
    "cut": BODY[:-1],
    "two objects": BODY + BODY,
    "deep": b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "model a number": b'{"model":5,"prompt":"canary prompt 91c2"}',
    "model a list": b'{"model":["sim-model"],"prompt":"x"}',
    "model not UTF-8": b'{"model":"\xff","prompt":"x"}',
    "model half a pair": b'{"model":"\\ud800","prompt":"x"}',
}


async def test_bodies_that_cannot_be_routed(guard: Guard) -> None:
    server, penstock = await guard()
    client = await Client.open(penstock)
    wrong: dict[str, object] = {}
    for name, body in BAD_BODIES.items():
        client.send(request(body=body))
        answer = await client.answer()
        if (answer.status, answer.code) != (400, "invalid_request"):
            wrong[name] = answer
        assert answer.json["error"].keys() == {"message", "type", "param", "code"}
        client.send(request(path=b"/v1/messages", body=body))
        answer = await client.answer()
        told = answer.json
        if (answer.status, told["error"].get("type")) != (400, "invalid_request_error"):
            wrong[f"messages: {name}"] = answer
        assert told.keys() == {"type", "error"}
        assert told["type"] == "error"
        assert told["error"].keys() == {"type", "message"}
    assert not wrong
    assert not server.seen
    client.send(request())  # the framing was never in doubt
    assert (await client.answer()).status == 200


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"sim-model","prompt":"x","stream":true,"\xff":1}',
        b'{"model":"sim-model","prompt":"x","stream":true,"stream_options":{"\xff":1}}',
        b'{"model":"sim-model","prompt":"\xff","stream":true}',
    ],
    ids=["name", "option", "value"],
)
async def test_text_that_is_not_utf8_is_the_clients_fault(guard: Guard, body: bytes) -> None:
    """Whoever finds it, penstock or the backend."""
    _, penstock = await guard()
    client = await Client.open(penstock, request(body=body))
    assert (await client.answer()).status == 400


async def test_odd_types_are_the_backends_to_judge(guard: Guard) -> None:
    server, penstock = await guard()
    client = await Client.open(penstock)
    bodies = [
        b'{"model":null,"prompt":7}',
        b'{"prompt":{"a":1},"stream":true}',
        b'{"prompt":[],"max_tokens":99999999999999999999999999}',
        b'{"messages":5}',
        b"{}",
    ]
    for body in bodies:
        client.send(request(body=body))
        answer = await client.answer()
        assert answer.status == 400
        assert isinstance(answer.code, int)  # the backend's own words
    assert len(server.seen) == len(bodies)


@pytest.mark.parametrize(
    ("odd", "name"),
    [
        (b'"n":"0000000000000000064"', "n"),
        (b'"n":16385', "n"),
        (b'"max_tokens":"0_0_0_4_0_0_0"', "max_tokens"),
        (b'"stream":"yes"', "stream"),
        (b'"stream":true,"stream_options":[1]', "stream_options"),
    ],
)
async def test_what_decides_a_charge_must_be_plain(guard: Guard, odd: bytes, name: str) -> None:
    server, penstock = await guard()
    client = await Client.open(penstock)
    client.send(request(body=b'{"model":"sim-model","prompt":"x",%b}' % odd))
    answer = await client.answer()
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert f"`{name}`" in answer.json["error"]["message"]
    assert not server.seen


async def test_unknown_paths_answer_in_the_shape_of_their_api(guard: Guard) -> None:
    server, penstock = await guard()
    client = await Client.open(penstock)
    for path in (b"/v1/nothing", b"/v1/messages/batches"):
        client.send(request(path=path, method=b"GET", body=None))
        answer = await client.answer()
        assert answer.status == 404
        assert answer.headers["content-type"] == "application/json"
        if b"messages" in path:
            assert answer.json["error"]["type"] == "not_found_error"
            assert answer.json["type"] == "error"
        else:
            assert answer.code == "unknown_path"
            assert answer.json["error"]["type"] == "invalid_request_error"
    client.send(request())  # no body came: the connection is as good as new
    assert (await client.answer()).status == 200
    assert len(server.seen) == 1


async def test_secrets_in_a_query_are_not_told(guard: Guard) -> None:
    """The fixture looks for them in the logs and metrics of every test here."""
    server, penstock = await guard()
    server.faults.set("cut_before_headers")
    client = await Client.open(penstock)
    client.send(request(path=b"/v1/completions?api_key=" + KEY.encode()))
    answer = await client.answer()
    assert (answer.status, answer.code) == (502, "backend_error")
    assert KEY.encode() not in answer.body
    assert str(server.port).encode() not in answer.body
