"""Streams of comments that never end, and events and answers of a great many members."""

import tracemalloc
from collections.abc import Callable

import orjson
import pytest

from penstock.balancing.outline import finished
from penstock.proxy.data.event_relay import HELD_EVENTS_MAX, QUIET_BYTES_MAX
from penstock.proxy.data.whole_events import EVENT_BYTES_MAX, HELD_BYTES_MAX
from penstock.proxy.dialects import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    POOLING,
    RESPONSES,
    TRANSCRIPTS,
    Dialect,
)
from penstock.proxy.dialects.dialect import Sign
from penstock.proxy.dialects.members import Whole
from penstock.proxy.dialects.whole import reading_whole
from penstock.proxy.errors.backend import AnswerMute, StreamBroken
from penstock.proxy.wire.json_object import JsonEnd
from tests.unit.proxy.data.relayed import DONE, TOKENS, Request, chat

PINGS = b": ping\n\n" * 1_000
JOINED = b": ping\n" * 1_000
EVERY = (CHAT, COMPLETIONS, MESSAGES, POOLING, RESPONSES, TRANSCRIPTS)
MIB = 1_048_576


def test_comments_without_end_after_tokens_break_the_stream() -> None:
    request = Request().feed(TOKENS[0], *[PINGS] * (QUIET_BYTES_MAX // len(PINGS)))
    assert not request.ends
    request.feed(PINGS)
    (error,) = request.ends
    assert isinstance(error, StreamBroken)
    assert error.reason == "no_events"


def test_comments_among_tokens_do_not() -> None:
    request = Request().feed(TOKENS[0], TOKENS[0])
    for _ in range(2 * QUIET_BYTES_MAX // len(PINGS)):
        request.feed(PINGS, TOKENS[0])
    assert not request.ends


def test_comments_without_end_after_the_end_end_it_whole() -> None:
    request = Request().feed(TOKENS[0], DONE, *[PINGS] * (QUIET_BYTES_MAX // len(PINGS) + 1))
    assert request.ends == [None]
    assert request.complete


def test_comments_without_end_before_a_token_can_still_be_tried_elsewhere() -> None:
    request = Request().feed(b": ping\n\n" * HELD_EVENTS_MAX)
    assert not request.ends
    request.feed(b": ping\n\n")
    (error,) = request.ends
    assert isinstance(error, AnswerMute)
    assert error.retryable
    assert not request.transport.sent


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=["lf", "cr lf", "cr"])
def test_comments_in_one_event_without_end_are_no_token(line_end: bytes) -> None:
    pings = JOINED.replace(b"\n", line_end)
    request = Request().feed(*[pings] * (2 * HELD_BYTES_MAX // len(pings)))
    assert isinstance(request.ends[0], AnswerMute)
    assert request.lease.prefilling
    assert not request.transport.sent


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=["lf", "cr lf", "cr"])
def test_comments_in_one_event_without_end_after_tokens_break_the_stream(line_end: bytes) -> None:
    pings = JOINED.replace(b"\n", line_end)
    request = Request().feed(TOKENS[0], *[pings] * (2 * EVENT_BYTES_MAX // len(pings)))
    error = request.ends[0]
    assert isinstance(error, StreamBroken)
    assert error.reason == "no_events"
    assert request.lease.generated_tokens == 1
    assert len(request.transport.sent) < 10_000


def test_comments_in_one_event_without_end_after_the_end_end_it_whole() -> None:
    request = Request().feed(TOKENS[0], DONE, *[JOINED] * (2 * EVENT_BYTES_MAX // len(JOINED)))
    assert request.ends == [None]
    assert request.complete


def test_comments_in_the_event_of_a_large_token_are_no_reason_to_break() -> None:
    large = JOINED + b"data: " + b"x" * 2 * EVENT_BYTES_MAX + b"\n\n"
    request = Request().feed(large[:MIB], large[MIB : 3 * MIB], large[3 * MIB :], TOKENS[0])
    assert not request.ends
    assert request.lease.generated_tokens == 2


def held_bytes(call: Callable[[], object]) -> int:
    """What a call holds at most: what is taken apart becomes an object for each member."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("dialect", EVERY, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize(
    "body",
    [
        b'{"choices":[' + b"{}," * (MIB // 3) + b'{"finish_reason":"abort"}]}',
        b'{"choices":[{"message":{' + b'"a":0,' * (MIB // 6) + b'"b":0},"delta":{"role":0}}]}',
        b'{"choices":[{"delta":{"role":0,' + b'"a":"",' * (MIB // 7) + b'"b":""}}]}',
        b'{"content":[' + b"{}," * (MIB // 3) + b"{}]}",
        b"{" + b'"a":0,' * (MIB // 6) + b'"error":null}',
        b"[" + b"0," * (MIB // 2) + b"0]",
        b"data:\n" * (MIB // 6),
    ],
    ids=["choices", "message", "delta", "content", "keys", "list", "lines"],
)
def test_a_great_many_members_are_not_taken_apart(dialect: Dialect, body: bytes) -> None:
    event = body + b"\n" if body.startswith(b"data:") else b"data: " + body + b"\n\n"

    def read_whole() -> None:
        whole = finished(reading_whole(body))
        if whole is not None:
            for read in (dialect.aborted, dialect.usage, dialect.serves, dialect.response_id):
                read(whole)

    for call in (lambda: dialect.read(event), read_whole):
        assert held_bytes(call) < 3.5 * MIB  # copies, and no objects


def told(answer: object) -> Whole:
    whole = finished(reading_whole(orjson.dumps(answer)))
    assert whole is not None
    return whole


def test_what_is_large_is_told_all_the_same() -> None:
    large = "x" * 100_000
    usage = {"prompt_tokens": 3, "completion_tokens": 5}
    choice = {"index": 2, "delta": {"content": large}, "finish_reason": None}
    event = CHAT.read(b"data: " + orjson.dumps({"choices": [choice], "usage": usage}) + b"\n\n")
    assert (event.sign, event.choice) == (Sign.TOKEN, 2)
    many = {"content": large, "logprobs": [{}] * 1_000}
    event = CHAT.read(b"data: " + orjson.dumps({"choices": [many], "usage": usage}) + b"\n\n")
    assert (event.sign, event.usage and event.usage.completion_tokens) == (Sign.TOKEN, 5)
    event = CHAT.read(b"data: " + orjson.dumps({"pad": large, "usage": usage}) + b"\n\n")
    assert event.sign is Sign.USAGE
    error = {"pad": large, "error": {"code": 503}}
    event = CHAT.read(b"data: " + orjson.dumps(error) + b"\n\n")
    assert (event.sign, event.status) == (Sign.ERROR, 503)
    assert CHAT.read(chat(large.encode(), b'"abort"')).sign is Sign.ABORT
    aborted = {"choices": [{"message": {"content": large}, "finish_reason": "abort"}]}
    assert CHAT.aborted(told(aborted))
    for dialect, said, nothing in (
        (CHAT, {"choices": [{"message": {"content": large}}]}, {"choices": [], "pad": large}),
        (MESSAGES, {"content": [{"text": large}]}, {"content": [], "pad": large}),
        (POOLING, {"data": [large]}, {"error": large}),
        (POOLING, [large], {"object": "error", "message": large}),
    ):
        assert dialect.serves(told(said))
        assert not dialect.serves(told(nothing))


@pytest.mark.parametrize("piece", [b"[]", b'\\"', b"\\\\", b"{["])
def test_the_end_of_json_is_counted_not_taken_apart(piece: bytes) -> None:
    end = JsonEnd()
    body = piece * (4 * MIB // len(piece))
    assert held_bytes(lambda: end.feed(body)) < 2.5 * len(body)
