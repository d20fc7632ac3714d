"""Streams without a token: some are an answer, and none of those accuses its backend."""

import pytest

from penstock.proxy.data.event_relay import EventRelay
from penstock.proxy.dialects import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Dialect
from penstock.proxy.errors.backend import AnswerBare, AnswerEmpty
from tests.unit.proxy.data.relayed import DONE, ROLE, USAGE, Request

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


BARE = [
    # Beam search whose best beam ends at once; the same is said of what is given up in the queue.
    (CHAT, ROLE + NONE + DONE),
    (COMPLETIONS, NONE + DONE),
    (MESSAGES, START + COUNTS + STOP),
    (RESPONSES, ended(b"completed", b"completed")),
    (RESPONSES, ended(b"completed", b"completed", b"null")),
]


@pytest.mark.parametrize(("dialect", "stream"), BARE)
def test_a_stream_that_tells_of_no_token_is_asked_for_elsewhere(
    dialect: Dialect, stream: bytes
) -> None:
    for cut in range(len(stream) + 1):
        request = Request(dialect).feed(stream[:cut], stream[cut:])
        assert type(request.ends[0]) is AnswerBare
        assert request.ends[0].retryable
        assert (request.ends[0].suspicious, request.ends[0].penal) == (False, False)
        assert request.transport.sent == b""


@pytest.mark.parametrize(("dialect", "stream"), BARE)
def test_it_is_the_answer_when_nobody_says_more(dialect: Dialect, stream: bytes) -> None:
    seen = stream.replace(NONE, b"")
    last = Request(dialect).feed(stream)
    assert isinstance(last.relay, EventRelay)
    last.relay.pass_on()
    assert (last.body, last.complete) == (seen, True)
    for cut in range(len(stream) + 1):
        second = Request(dialect, bare_before=True).feed(stream[:cut], stream[cut:])
        second.relay.end()
        assert (second.body, second.ends, second.complete) == (seen, [None], True)


def test_usage_that_the_client_asked_for_is_part_of_it() -> None:
    request = Request(bare_before=True, hide_usage=False).feed(ROLE + NONE + DONE)
    request.relay.end()
    assert request.body == ROLE + NONE + DONE


@pytest.mark.parametrize("bare_before", [False, True])
@pytest.mark.parametrize(
    ("dialect", "stream"),
    [(CHAT, DONE), (CHAT, ROLE + DONE), (COMPLETIONS, DONE), (MESSAGES, START + STOP)],
)
def test_an_end_without_what_belongs_to_it_is_a_failure(
    dialect: Dialect, stream: bytes, bare_before: bool
) -> None:
    """So a vLLM that is ending sends away what it is asked: usage was asked for, and is missing."""
    request = Request(dialect, bare_before=bare_before).feed(stream)
    assert type(request.ends[0]) is AnswerEmpty
    assert request.ends[0].suspicious


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
    request = Request(RESPONSES).feed(stream)
    request.relay.end()
    assert (request.ends, request.body) == ([None], stream)


@pytest.mark.parametrize(
    ("dialect", "first"),
    [
        (CHAT, b'{"role":"assistant","content":null,"tool_calls":[{"index":0}]}'),
        (CHAT, b'{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}'),
        (CHAT, b'{"reasoning":"hm"}'),
        (CHAT, b'{"refusal":"no"}'),
        (CHAT, b'{"role":"assistant","content":"","reasoning":"hm"}'),
    ],
)
def test_tool_calls_reasoning_and_refusals_are_tokens(dialect: Dialect, first: bytes) -> None:
    event = b'data: {"choices":[{"index":0,"delta":%b,"finish_reason":null}]}\n\n' % first
    assert Request(dialect).feed(ROLE, event).relay.committed


@pytest.mark.parametrize("delta", [b"{}", b'{"content":""}', b'{"content":null}'])
@pytest.mark.parametrize("finish", [b"stop", b"length", b"tool_calls", b"repetition"])
def test_a_reason_to_finish_is_an_answer_by_itself(delta: bytes, finish: bytes) -> None:
    """The end at the first token, a stop string in it, a limit of one, hidden reasoning."""
    last = b'data: {"choices":[{"index":0,"delta":%b,"finish_reason":"%b"}]}\n\n' % (delta, finish)
    request = Request().feed(ROLE + last + USAGE + DONE)
    request.relay.end()
    assert (request.ends, request.body) == ([None], ROLE + last + DONE)
