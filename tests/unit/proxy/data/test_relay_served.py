"""Answers that answer nothing: passed on as they are, never taken for what was asked."""

import pytest

from penstock.balancing.ask import Ask
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
from tests.unit.proxy.data.relayed import DONE, JSON, ROLE, TOKENS, USAGE, Request, chat

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
    for cut in range(len(stream) + 1):
        request = Request().feed(stream[:cut], stream[cut:])
        request.relay.end()
        assert request.ends == [None]
        assert request.relay.served == served


def test_a_location_of_the_backends_own_network_stays_there() -> None:
    head = b"HTTP/1.1 201 Created\r\ncontent-type: application/json\r\nlocation: https://inside/x"
    assert b"inside" not in passed(POOLING, POOLED, b"{}", head).transport.sent


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
    for cut in range(len(stream) + 1):
        request = Request(dialect).feed(stream[:cut], stream[cut:])
        request.relay.end()
        assert (request.backend.latency.value_s > 0.0) is teaches
        assert bool(request.backend.prefill_speed.recent._ratios) is teaches


@pytest.mark.parametrize("before", [b"", b": ping\n\n", USAGE])
def test_a_stream_that_begins_with_a_4xx_means_that(before: bytes) -> None:
    assert Request().feed(before + REFUSED).relay.meant_status == 400
    assert Request().feed(before, REFUSED).relay.meant_status == 400


@pytest.mark.parametrize("before", [TOKENS[0], ROLE, ROLE + TOKENS[0] + TOKENS[1]])
def test_one_with_anything_before_it_does_not_in_however_many_reads_it_comes(before: bytes) -> None:
    assert Request().feed(before + REFUSED).relay.meant_status == 200
    assert Request().feed(before, REFUSED).relay.meant_status == 200
