"""Answers through the relay: what is held until it is whole, and what answers nothing."""

import pytest

from penstock.balancing.ask import Ask
from penstock.proxy.data.json_relay import WHOLE_BYTES_MAX
from penstock.proxy.dialects import (
    CHAT,
    COMPLETIONS,
    EMBED,
    MESSAGES,
    POOLING,
    RESPONSES,
    TRANSCRIPTS,
    Dialect,
)
from penstock.proxy.dialects.dialect import Usage
from penstock.proxy.errors.backend import AnswerCut, BackendDraining, EngineDead
from tests.unit.proxy.data.relayed import (
    DONE,
    DRAINING,
    JSON,
    ROLE,
    TOKENS,
    USAGE,
    Request,
    at_every_split,
    chat,
)

PLAIN = Ask("/", prompt_tokens=7)
POOLED = PLAIN.changed(generates=False)
NONE = USAGE.replace(b'"completion_tokens":3', b'"completion_tokens":0')
ZERO = b'"usage":{"prompt_tokens":7,"completion_tokens":0}'
ZERO_OUT = b'"usage":{"input_tokens":7,"output_tokens":0}'
SAID = (
    b'{"choices":[{"message":{"role":"assistant","content":%b,"tool_calls":%b,"refusal":null}}],'
    + ZERO
    + b"}"
)
REFUSED = b'data: {"error": {"message": "no", "code": 400}}\n\n'


def passed(dialect: Dialect, ask: Ask, body: bytes, head: bytes = JSON) -> Request:
    request = Request(dialect, ask=ask, head=head + b"\r\ncontent-length: %d" % len(body))
    request.feed(body)
    request.relay.end()
    assert body in request.transport.sent
    assert request.ends == [None]
    return request


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        *(
            (dialect, body)
            for dialect in (CHAT, COMPLETIONS, MESSAGES, RESPONSES)
            for body in (
                b"",
                b"{}",
                b"null",
                b"[]",
                b"<html>",
                b'{"error":{"message":"no","code":500}}',
                b'{"object":"error","message":"no","code":500}',
                b'{"type":"error","error":{"type":"api_error"}}',
                b'{"choices":[],"content":[],"output":[],"usage":null}',
            )
        ),
        (CHAT, SAID % (b'""', b"[]")),
        (COMPLETIONS, b'{"choices":[{"text":""}],' + ZERO + b"}"),
        (MESSAGES, b'{"content":[{"type":"text","text":""}],"stop_reason":"x",' + ZERO_OUT + b"}"),
        (RESPONSES, b'{"object":"response","status":"failed","error":{"code":"x"},"output":[1]}'),
    ],
)
def test_json_without_an_answer_teaches_nothing(dialect: Dialect, body: bytes) -> None:
    request = passed(dialect, PLAIN, body)
    assert not request.relay.served
    assert request.lease.first_token_s is None


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (CHAT, SAID % (b'"hello"', b"[]")),
        (CHAT, SAID % (b"null", b'[{"id":"c"}]')),
        (CHAT, b'{"choices":[{"message":{"content":"hello"}}]}'),
        (COMPLETIONS, b'{"choices":[{"text":"hello"}]}'),
        (MESSAGES, b'{"content":[{"type":"text","text":"hello"}],"stop_reason":"x"}'),
        (RESPONSES, b'{"object":"response","status":"completed","output":[{"type":"message"}]}'),
        (RESPONSES, b'{"object":"response","status":"queued","error":null,"output":[]}'),
    ],
)
def test_json_with_an_answer_is_one(dialect: Dialect, body: bytes) -> None:
    request = passed(dialect, PLAIN, body)
    assert request.relay.served
    assert request.lease.first_token_s is not None


@pytest.mark.parametrize("dialect", [POOLING, EMBED, TRANSCRIPTS])
def test_other_answers_may_be_of_any_kind_but_errors(dialect: Dialect) -> None:
    for body in (b"", b"{}", b"[]", b'{"error":{"code":500}}', b'{"object":"error"}', b"<html>"):
        assert not passed(dialect, POOLED, body).relay.served
    for body in (b'{"data":[{}],"usage":{"prompt_tokens":7}}', b'{"text":""}', b"[1]"):
        assert passed(dialect, POOLED, body).relay.served


@pytest.mark.parametrize(
    ("kind", "body", "generates", "served"),
    [
        (b"text/html", b"<html>", True, False),
        (b"text/html", b"<html>", False, False),
        (b"text/plain", b"words", True, False),
        (b"text/plain", b"words", False, True),
        (b"application/octet-stream", b"\x00", False, True),
        (b"text/plain", b"", False, False),
    ],
)
def test_other_types_are_answers_where_no_json_is_due(
    kind: bytes, body: bytes, generates: bool, served: bool
) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: " + kind
    ask = PLAIN if generates else POOLED
    request = passed(CHAT, ask, body, head)
    assert request.relay.served == served
    assert (request.lease.first_token_s is not None) == served


@pytest.mark.parametrize(
    ("stream", "served"),
    [
        (REFUSED + DONE, False),
        (TOKENS[0] + REFUSED + DONE, False),
        (ROLE + chat(b"", b'"stop"') + NONE + DONE, False),
        (ROLE + chat(b"x", b'"stop"') + USAGE + DONE, True),
        (TOKENS[0] + TOKENS[-1] + NONE + DONE, True),  # it counts wrong, and answers
        (b"".join(TOKENS) + DONE, True),
    ],
)
def test_a_stream_of_an_error_or_of_no_token_is_no_answer(stream: bytes, served: bool) -> None:
    for request in at_every_split(stream):
        assert request.ends == [None]
        assert request.relay.served == served


TEXT = b'data: {"id":"c","choices":[{"index":0,"text":%b,"finish_reason":%b}]}\n\n'
BARE_END = chat(b"", b'"stop"').replace(b'{"content":""}', b"{}")


@pytest.mark.parametrize(
    ("dialect", "stream", "teaches"),
    [
        (CHAT, ROLE + chat(b"", b'"stop"') + NONE + DONE, False),
        (CHAT, ROLE + BARE_END + NONE + DONE, False),
        (CHAT, ROLE + BARE_END + DONE, False),
        (COMPLETIONS, TEXT % (b'""', b'"stop"') + NONE + DONE, False),
        (CHAT, ROLE + chat(b"a", b'"length"') + DONE, True),
        (CHAT, ROLE + chat(b"") + chat(b"", b'"stop"') + DONE, True),
        (COMPLETIONS, TEXT % (b'"a"', b'"length"') + DONE, True),
    ],
)
def test_a_stream_that_ends_with_nothing_said_is_not_quick(
    dialect: Dialect, stream: bytes, teaches: bool
) -> None:
    for request in at_every_split(stream, dialect):
        assert (request.backend.latency.value_s > 0.0) is teaches
        assert bool(request.backend.prefill_speed.recent._ratios) is teaches


@pytest.mark.parametrize(
    ("before", "status"),
    [
        *((before, 400) for before in (b"", b": ping\n\n", USAGE)),
        *((before, 200) for before in (TOKENS[0], ROLE, ROLE + TOKENS[0] + TOKENS[1])),
    ],
)
def test_a_stream_means_the_4xx_that_it_begins_with(before: bytes, status: int) -> None:
    """In however many reads it comes."""
    assert Request().feed(before + REFUSED).relay.meant_status == status
    assert Request().feed(before, REFUSED).relay.meant_status == status


# Held until whole, or passed as they come -------------------------------------------------------


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
        request = Request(head=head).feed(body % message).end()
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
    request = Request(client=b"GET / HTTP/1.0").feed(TOKENS[0], DONE).end()
    head, _, body = request.transport.sent.partition(b"\r\n\r\n")
    assert body == TOKENS[0] + DONE
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head


def test_a_cut_json_answer_without_a_length_is_found_out() -> None:
    request = Request(head=JSON).feed(b'{"choices":[{"te').end()
    assert isinstance(request.ends[0], AnswerCut)
    assert request.transport.sent == b""
    whole = Request(head=JSON).feed(b'{"choices":[]}').end()
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
    request = Request(RESPONSES, head=head).feed(body).end()
    assert (request.made, request.ends) == (made, [None])


def test_ids_of_other_dialects_are_no_responses() -> None:
    assert passed(CHAT, PLAIN, b'{"id":"resp_1","object":"response"}').made == []


def test_a_backends_cors_headers_and_the_locations_of_its_network_are_not_passed() -> None:
    head = JSON + b"\r\naccess-control-allow-origin: *\r\nx-penstock-backend: evil"
    sent = passed(CHAT, PLAIN, b"{}", head).transport.sent
    assert b"access-control" not in sent
    assert b"evil" not in sent
    head = JSON.replace(b"200 OK", b"201 Created") + b"\r\nlocation: https://inside/x"
    assert b"inside" not in passed(POOLING, POOLED, b"{}", head).transport.sent


def test_a_transcript_in_one_piece_has_no_token_counts() -> None:
    body = b'{"text":"\\"abort\\"","usage":{"type":"duration","seconds":3}}'
    assert passed(TRANSCRIPTS, POOLED, body).relay.usage is None
