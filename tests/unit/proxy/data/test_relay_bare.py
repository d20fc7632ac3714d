"""Streams without a token: some are an answer, and none of those accuses its backend."""

import pytest

from penstock.proxy.data.event_relay import EventRelay
from penstock.proxy.dialects import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Dialect
from penstock.proxy.errors.backend import AnswerBare
from tests.unit.proxy.data.relayed import DONE, ROLE, USAGE, Request, at_every_split

NONE = USAGE.replace(b'"completion_tokens":3', b'"completion_tokens":0')
START = b'event: message_start\ndata: {"type":"message_start"}\n\n'
COUNTS = (
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},'
    b'"usage":{"input_tokens":7,"output_tokens":0}}\n\n'
)
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
ENDED = (
    b'event: response.%b\ndata: {"type":"response.%b","response":{"status":"%b","usage":%b}}\n\n'
)
NO_TOKENS = b'{"input_tokens":7,"output_tokens":0}'


def ended(kind: bytes, status: bytes, usage: bytes = NO_TOKENS) -> bytes:
    return ENDED % (kind, kind, status, usage)


@pytest.mark.parametrize(
    ("dialect", "stream"),
    [
        # Beam search whose best beam ends at once, or what was given up in the queue.
        (CHAT, ROLE + NONE + DONE),
        (COMPLETIONS, NONE + DONE),
        (MESSAGES, START + COUNTS + STOP),
        (RESPONSES, ended(b"completed", b"completed")),
        (RESPONSES, ended(b"completed", b"completed", b"null")),
    ],
)
def test_a_stream_that_tells_of_no_token_is_asked_for_elsewhere_and_then_the_answer(
    dialect: Dialect, stream: bytes
) -> None:
    for request in at_every_split(stream, dialect):
        assert type(request.error) is AnswerBare
        assert request.error.retryable
        assert (request.error.suspicious, request.error.penal) == (False, False)
        assert request.transport.sent == b""
    seen = stream.replace(NONE, b"")
    last = Request(dialect).feed(stream)
    assert isinstance(last.relay, EventRelay)
    last.relay.pass_on()
    assert (last.body, last.complete) == (seen, True)
    for second in at_every_split(stream, dialect, bare_before=True):
        assert (second.body, second.ends, second.complete) == (seen, [None], True)
    asked = Request(dialect, bare_before=True, hide_usage=False).feed(stream).end()
    assert asked.body == stream


@pytest.mark.parametrize(
    "stream",
    [
        ended(b"incomplete", b"incomplete"),
        ended(b"completed", b"incomplete"),  # so vLLM names it
        ended(b"cancelled", b"cancelled", b"null"),
        ended(b"completed", b"cancelled", b"null"),
    ],
)
def test_what_was_cancelled_or_ran_into_its_limit_is_whole(stream: bytes) -> None:
    request = Request(RESPONSES).feed(stream).end()
    assert (request.ends, request.body) == ([None], stream)


@pytest.mark.parametrize(
    "first",
    [
        b'{"role":"assistant","content":null,"tool_calls":[{"index":0}]}',
        b'{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}',
        b'{"reasoning":"hm"}',
        b'{"refusal":"no"}',
        b'{"role":"assistant","content":"","reasoning":"hm"}',
    ],
)
def test_tool_calls_reasoning_and_refusals_are_tokens(first: bytes) -> None:
    event = b'data: {"choices":[{"index":0,"delta":%b,"finish_reason":null}]}\n\n' % first
    assert Request().feed(ROLE, event).relay.committed


@pytest.mark.parametrize("delta", [b"{}", b'{"content":""}', b'{"content":null}'])
@pytest.mark.parametrize("finish", [b"stop", b"length", b"tool_calls", b"repetition"])
def test_a_reason_to_finish_is_an_answer_by_itself(delta: bytes, finish: bytes) -> None:
    """The end at the first token, a stop string in it, a limit of one, hidden reasoning."""
    last = b'data: {"choices":[{"index":0,"delta":%b,"finish_reason":"%b"}]}\n\n' % (delta, finish)
    request = Request().feed(ROLE + last + USAGE + DONE).end()
    assert (request.ends, request.body) == ([None], ROLE + last + DONE)
