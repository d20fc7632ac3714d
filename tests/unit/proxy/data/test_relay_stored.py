"""Streams of the responses API, and where streams end."""

import pytest

from penstock.proxy.data.whole_events import HELD_BYTES_MAX
from penstock.proxy.dialects import CHAT, RESPONSES
from penstock.proxy.dialects.dialect import Usage
from tests.unit.proxy.data.relayed import (
    DONE,
    JSON,
    ROLE,
    TOKENS,
    USAGE,
    Request,
    chat,
)

# Stored responses -------------------------------------------------------------------------------

CREATED = (
    b'event: response.created\ndata: {"response":{"id":%b,"object":"response"},'
    b'"sequence_number":0,"type":"response.created"}\n\n'
)
ITEM = b'event: x\ndata: {"item":{"id":"msg_1"},"type":"response.output_item.added"}\n\n'


def test_the_id_of_a_streamed_response_is_told_once_wherever_it_is_cut() -> None:
    stream = CREATED % b'"resp_1"' + ITEM
    for cut in range(len(stream)):
        assert Request(RESPONSES).feed(stream[:cut], stream[cut:]).made == ["resp_1"]


@pytest.mark.parametrize("odd", [b"7", b"null", b"{}", b'["resp_1"]'])
def test_an_odd_id_is_passed_on_and_not_told(odd: bytes) -> None:
    stream = CREATED % odd + ITEM
    request = Request(RESPONSES).feed(stream)
    assert (request.made, request.body) == ([], stream)


def test_ids_of_other_dialects_are_no_responses() -> None:
    body = b'{"id":"resp_1","object":"response"}'
    request = Request(CHAT, head=JSON + b"\r\ncontent-length: %d" % len(body)).feed(body)
    request.relay.end()
    assert request.made == []


# What comes from the client's own request in the last event of a responses stream.
MADE = (
    b"event: response.output_text.delta\n"
    b'data: {"type":"response.output_text.delta","delta":"x"}\n\n'
)
COMPLETED = (
    b"event: response.completed\n"
    b'data: {"type":"response.completed","response":{%b,"usage":{"input_tokens":7,'
    b'"output_tokens":1}}}\n\n'
)


@pytest.mark.parametrize(
    "fields",
    [
        b'"metadata":{"delta":"x"}',
        b'"tools":[{"parameters":{"delta":".delta\\ndata: "}}]',
        b'"instructions":"%b"' % (b"x" * (HELD_BYTES_MAX + 100_000)),
    ],
    ids=["metadata", "tools", "large"],
)
def test_the_end_of_a_responses_stream_is_seen_whatever_it_repeats(fields: bytes) -> None:
    request = Request(RESPONSES).feed(MADE, MADE)
    last = COMPLETED % fields
    for at in range(0, len(last), 60_000):
        request.feed(last[at : at + 60_000])
    assert request.relay.over
    request.relay.end()
    assert request.ends == [None]
    assert request.body == MADE + MADE + last
    assert request.relay.usage == Usage(7, 1, None)


def test_tokens_that_none_of_a_responses_events_show_are_an_answer() -> None:
    """A reasoning parser may keep the only ones there were."""
    last = COMPLETED % b'"status":"incomplete"'
    request = Request(RESPONSES).feed(last)
    request.relay.end()
    assert request.ends == [None]
    assert request.body == last


def test_a_stream_is_over_with_its_own_end_and_not_before() -> None:
    request = Request().feed(TOKENS[0])
    assert not request.relay.over
    assert request.feed(DONE).relay.over
    assert not request.feed(b"data: more").relay.over


@pytest.mark.parametrize("at", range(1, 6))
def test_a_read_may_end_inside_an_event_behind_any_other(at: int) -> None:
    """Also behind a last token, a comment or usage alone: none of them is an ordinary event."""
    events = [ROLE, chat(b"a"), b": ping\n\n", chat(b"b"), chat(b"c", b'"stop"'), USAGE, DONE]
    for cut in range(1, len(events[at + 1])):
        pieces = [*events[:at], events[at] + events[at + 1][:cut], events[at + 1][cut:]]
        request = Request(hide_usage=False).feed(*pieces, *events[at + 2 :])
        request.relay.end()
        assert (request.ends, request.body) == ([None], b"".join(events))
        assert request.lease.generated_tokens == 3
