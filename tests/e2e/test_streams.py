"""Answers and requests through a real process: the bytes that a direct client would have seen.

The servers' clock stands still and ids follow `x-request-id`, so an answer is a pure function
of its request and is compared byte for byte.
"""

import re
from typing import Any

import pytest

from tests.e2e.process import Serve, Simulate
from tests.e2e.request import BODIES, CHAT, ask, one

ASK_USAGE = {"stream_options": {"include_usage": True}}
every_dialect = pytest.mark.parametrize("path", BODIES)


def without_usage(stream: bytes) -> bytes:
    """A stream without its usage chunk, the one whose list of choices is empty."""
    events = re.split(rb"(?<=\n\n)|(?<=\r\n\r\n)", stream)
    kept = [event for event in events if b'"choices":[],' not in event]
    assert len(kept) == len(events) - 1
    return b"".join(kept)


@every_dialect
async def test_plain_answers_pass_unchanged(simulate: Simulate, serve: Serve, path: str) -> None:
    server, penstock = await one(simulate, serve)
    got, direct = [await ask(to, path, BODIES[path]) for to in (penstock, server)]
    assert got.status == 200
    assert got.body == direct.body
    assert got.headers["content-type"] == direct.headers["content-type"]
    assert got.headers["content-length"] == direct.headers["content-length"]


FAULTS: tuple[dict[str, Any], ...] = (
    {},
    {"kind": "split", "at_byte": 0, "delay_s": 0.001},
    {"kind": "split", "at_byte": 7, "delay_s": 0.001},
    {"kind": "crlf"},
    {"kind": "multi_token", "tokens": 7},
)


@every_dialect
async def test_streams_pass_unchanged(simulate: Simulate, serve: Serve, path: str) -> None:
    """Less the usage chunk, for which penstock asks the backend but the client did not."""
    server, penstock = await one(simulate, serve)
    hidden = path in ("/v1/chat/completions", "/v1/completions")
    body = BODIES[path] | {"stream": True}
    for fault in FAULTS:
        server.faults.clear()
        if fault:
            server.faults.set(**fault)
        got = await ask(penstock, path, body)
        direct = await ask(server, path, body | (ASK_USAGE if hidden else {}))
        assert got.status == 200
        assert got.body == (without_usage(direct.body) if hidden else direct.body), fault
        assert got.headers["content-type"] == direct.headers["content-type"]
        assert "content-length" not in got.headers


async def test_large_requests_and_answers_stay_whole(simulate: Simulate, serve: Serve) -> None:
    """Larger than what is held back (1 MiB), than one read and than the socket's buffers."""
    server, penstock = await one(simulate, serve)
    inputs = [f"input {i} {'x' * 250}" for i in range(10_000)]
    got, direct = [await ask(to, "/v1/embeddings", {"input": inputs}) for to in (penstock, server)]
    assert len(got.body) > 1_048_576
    assert got.body == direct.body
    # A machine that is slow for a moment may have it probed in between.
    through, straight = [each.body for each in server.seen if "/v1/embeddings" in each.line]
    assert through == straight


async def test_headers_of_answers(simulate: Simulate, serve: Serve) -> None:
    _, penstock = await one(simulate, serve)
    path = "/v1/chat/completions"
    for stream in (False, True):
        got = await ask(penstock, path, CHAT | {"stream": stream}, x_request_id="mine-7")
        assert got.headers.getall("x-request-id") == ["mine-7"]
        assert got.headers["x-penstock-backend"] == "b0"
        assert got.headers["x-penstock-attempts"] == "1"
        assert got.headers["x-penstock-reason"] == "only"
    for odd in ("", "x" * 129, "two words"):
        got = await ask(penstock, path, CHAT, x_request_id=odd)
        assert re.fullmatch("[0-9a-f]{32}", got.headers["x-request-id"])
    assert got.json["id"] == f"chatcmpl-{got.headers['x-request-id']}"


# Requests --------------------------------------------------------------------------------------

# What a parser and a writer of JSON would change: spaces, escapes, numbers, repeats, order.
ODD_FIELDS = {
    "unknown": b'{ "b" : [1 ,2 ],\n"a":"\\u00e9\\ud83d\\ude80\\/" , "a":1 }',
    "seed": b"123456789012345678901234567890",
    "temperature": b"1.0000000000000000000000000001e+0",
    "messages": b'[ {"role":"user","content":"\xe6\xb0\xb4 \\u6c34 \\n"}\t]',
    "top_p": b"0.10",
    "stop": b"null",
    "model": b'"sim\\u002dmodel"',
    "max_tokens": b"3",
}


def odd_body(**fields: bytes) -> bytes:
    every = ODD_FIELDS | fields
    lines = [b' "%b" :  %b' % (name.encode(), value) for name, value in every.items()]
    return b"\r\n{" + b" ,\n".join(lines) + b"}\n "


UNEDITED: tuple[tuple[str, dict[str, bytes]], ...] = (
    ("/v1/chat/completions", {}),
    ("/v1/chat/completions", {"stream": b"false"}),
    ("/v1/chat/completions", {"stream": b"null"}),
    ("/v1/chat/completions", {"stream": b"true", "stream_options": b'{ "include_usage" : true }'}),
    ("/v1/messages", {"stream": b"true"}),
    ("/v1/responses", {"stream": b"true", "input": b'" x"'}),
    ("/v1/embeddings", {"input": b'[ "x" ]'}),
)


async def test_bodies_reach_the_backend_unchanged(simulate: Simulate, serve: Serve) -> None:
    server, penstock = await one(simulate, serve)
    for path, fields in UNEDITED:
        body = odd_body(**fields)
        got = await ask(penstock, path, body)
        assert got.status == 200, got.body
        assert server.seen[-1].body == body
