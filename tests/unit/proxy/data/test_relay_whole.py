"""Answers that are no streams through the relay: held until whole, or passed as they come."""

import pytest

from penstock.proxy.data.json_relay import WHOLE_BYTES_MAX
from penstock.proxy.dialects import MESSAGES, RESPONSES
from penstock.proxy.dialects.dialect import Usage
from penstock.proxy.errors.backend import AnswerCut, BackendDraining, EngineDead
from penstock.proxy.wire.heads import (
    RequestHead,
    ResponseHead,
    parse_request_head,
    parse_response_head,
)
from tests.unit.proxy.data.relayed import (
    DONE,
    DRAINING,
    JSON,
    SSE,
    TOKENS,
    Request,
)


@pytest.mark.parametrize("body", [b'{"error":{"message":"%b"}}', b'{"error": {"message": "%b"}}'])
def test_a_500_tells_of_its_backend_or_passes(body: bytes) -> None:
    head = b"HTTP/1.1 500 Oops\r\ncontent-type: application/json"
    cases = {
        DRAINING: BackendDraining,
        b"EngineCore encountered an issue. See above.": EngineDead,
        b"quoted: " + DRAINING: type(None),
        rb"\"message\":\"" + DRAINING: type(None),
    }
    for message, error in cases.items():
        request = Request(head=head).feed(body % message)
        request.relay.end()
        assert type(request.ends[0]) is error
        assert bool(request.transport.sent) == (error is type(None))


def test_json_is_held_until_it_is_whole() -> None:
    body = b'{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}'
    request = Request(head=JSON + b"\r\ncontent-length: %d" % len(body)).feed(body[:9], body[9:])
    assert request.transport.sent == b""
    request.relay.end()
    assert request.transport.sent.endswith(b"\r\n\r\n" + body)
    assert b"content-length: %d\r\n" % len(body) in request.transport.sent
    assert request.relay.usage == Usage(7, 3, None)
    assert request.ends == [None]


def test_a_cut_json_answer_never_reached_the_client() -> None:
    request = Request(head=JSON + b"\r\ncontent-length: 100").feed(b'{"choices"')
    request.relay.lost(AnswerCut())
    assert request.transport.sent == b""
    assert request.ends[0] is not None
    assert request.ends[0].retryable


def test_json_over_the_limit_is_passed_on() -> None:
    body = b'["%b"]' % (b"x" * WHOLE_BYTES_MAX)
    request = Request(head=JSON).feed(body[:WHOLE_BYTES_MAX])
    assert request.transport.sent == b""
    request.feed(body[WHOLE_BYTES_MAX:-1], body[-1:])
    request.relay.end()
    assert request.body == body
    assert request.complete


def test_an_error_answer_after_a_hold_becomes_an_event() -> None:
    """A hold has promised a 200; the backend then says 400."""
    request = Request(MESSAGES, head=b"HTTP/1.1 400 Bad\r\ncontent-type: application/json")
    request.answer.hold()
    request.feed(b'{"type":"error",\n"error":{}}')
    request.relay.end()
    assert request.body == b': ping\n\nevent: error\ndata: {"type":"error", "error":{}}\n\n'
    assert not request.complete
    assert request.transport.closed


def test_anything_else_is_committed_at_its_head() -> None:
    request = Request(head=b"HTTP/1.1 200 OK\r\ncontent-type: audio/wav")
    assert request.transport.sent.startswith(b"HTTP/1.1 200 OK\r\n")
    request.feed(b"RIFF", b"data")
    request.relay.end()
    assert request.body == b"RIFFdata"


def test_http_1_0_gets_no_chunks_and_a_close() -> None:
    request = Request(client=b"GET / HTTP/1.0").feed(TOKENS[0], DONE)
    request.relay.end()
    head, _, body = request.transport.sent.partition(b"\r\n\r\n")
    assert body == TOKENS[0] + DONE
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head


def test_heads_are_typed() -> None:
    assert isinstance(parse_request_head(b"GET / HTTP/1.0"), RequestHead)
    assert isinstance(parse_response_head(SSE), ResponseHead)


def test_a_cut_json_answer_without_a_length_is_found_out() -> None:
    request = Request(head=JSON).feed(b'{"choices":[{"te')
    request.relay.end()
    assert isinstance(request.ends[0], AnswerCut)
    assert request.transport.sent == b""
    whole = Request(head=JSON).feed(b'{"choices":[]}')
    whole.relay.end()
    assert whole.ends == [None]


@pytest.mark.parametrize(
    ("body", "made"),
    [
        (b'{"id":"resp_1","object":"response","usage":null}', ["resp_1"]),
        (b'{"id":"resp_1","object":"response.deleted"}', []),
        (b'{"id":7,"object":"response"}', []),
        (b'{"error":{"message":"no"}}', []),
        (b"[]", []),
        (b"no JSON", []),
    ],
)
def test_the_id_of_a_whole_response_is_told(body: bytes, made: list[str]) -> None:
    head = JSON + b"\r\ncontent-length: %d" % len(body)
    request = Request(RESPONSES, head=head).feed(body)
    request.relay.end()
    assert (request.made, request.ends) == (made, [None])
