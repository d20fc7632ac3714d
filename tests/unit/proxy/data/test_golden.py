"""What a real vLLM says on the wire, through the relays: whole and byte by byte."""

import re

import orjson
import pytest

from penstock.proxy.dialects.dialect import Usage
from penstock.proxy.errors.backend import (
    AnswerAborted,
    AnswerBare,
    AnswerDropped,
    AnswerEmpty,
    BackendBusy,
    BackendDraining,
    BackendError,
    EngineDead,
    StreamBroken,
)
from penstock.proxy.wire.heads import ResponseHead
from tests.unit.proxy.data.golden import GOLDEN, STREAMS, Golden, body_of
from tests.unit.proxy.data.relayed import Request
from tests.unit.proxy.wire.test_connection import Link

# What stands for the first token of each API, and what comes before it.
FIRST = {
    "chat": b'"delta":{"content":',
    "completions": b'"text":',
    "responses": b"event: response.output_item.added",
    "messages": b"event: content_block_start",
}
WELL = [name for name in STREAMS if not name.startswith(("draining", "busy", "dead", "aborted"))]
HIDDEN: dict[str, type[BackendError]] = {
    **dict.fromkeys([name for name in GOLDEN if name.startswith("draining")], BackendDraining),
    **{
        name: EngineDead if name.startswith("dead") else AnswerAborted
        for name in GOLDEN
        if name.startswith(("dead", "aborted")) and name not in STREAMS
    },
    **dict.fromkeys([n for n in STREAMS if n.startswith("aborted_queued")], AnswerEmpty),
    **dict.fromkeys([name for name in STREAMS if name.startswith("busy")], BackendBusy),
    "aborted_queued_messages_stream": AnswerBare,
    "aborted_queued_responses_stream": AnswerBare,
    "draining_token_ids": AnswerAborted,
    "draining_token_ids_stream": AnswerEmpty,
    "busy_responses_inside": AnswerDropped,
}
# vLLM says "completed" of a response that it gave up, however much of it there is.
HIDDEN.pop("aborted_responses")
BROKEN = [name for name in STREAMS if re.match("aborted_(?!queued|responses)", name)]


class Passage:
    """A recorded answer on its way through a backend's connection and its relay."""

    def __init__(self, golden: Golden, *, hide_usage: bool = True) -> None:
        self.request = Request(golden.dialect, hide_usage=hide_usage, head=golden.head)
        self.link = Link()
        self.link.connection.send(b"", b"", self, method=b"POST")

    def feed(self, *pieces: bytes) -> "Passage":
        for piece in pieces:
            if not self.request.ends:
                self.link.connection.data_received(piece)
            if self.request.ends and self.link.connection.sink is not None:
                self.link.connection.abort()  # as an attempt does
        return self

    def close(self) -> "Passage":
        self.link.connection.connection_lost(None)
        return self

    @property
    def sent(self) -> bytes:
        """The body that the client got."""
        return body_of(self.request.transport.sent)

    @property
    def error(self) -> BackendError | None:
        (error,) = self.request.ends
        return error

    def head(self, head: ResponseHead) -> None:
        self.link.connection.sink = self.request.relay

    def body(self, data: bytes) -> None:
        raise AssertionError("the relay is the sink now")

    def end(self) -> None:
        raise AssertionError("the relay is the sink now")

    def lost(self, error: BackendError) -> None:
        raise AssertionError("every recording has a head")


def passed(golden: Golden, *, bytewise: bool, hide_usage: bool = True) -> Passage:
    """A recording, in one read or in as many as it has bytes, then the connection's end."""
    passage = Passage(golden, hide_usage=hide_usage)
    answer = golden.answer
    if bytewise:
        passage.feed(*[answer[i : i + 1] for i in range(len(answer))])
    else:
        passage.feed(answer)
    return passage.close()


bytewise = pytest.mark.parametrize("bytewise", [False, True], ids=["whole", "byte by byte"])


def test_the_recordings_are_there() -> None:
    assert len(GOLDEN) > 70
    assert len(WELL) >= 12


@bytewise
@pytest.mark.parametrize("name", WELL)
def test_a_stream_passes_as_it_came(name: str, bytewise: bool) -> None:
    golden = GOLDEN[name]
    passage = passed(golden, bytewise=bytewise, hide_usage=False)
    assert passage.error is None
    assert passage.sent == golden.body
    assert passage.request.complete


@bytewise
@pytest.mark.parametrize("name", [name for name in WELL if "usage" in name or "prompts" in name])
def test_usage_is_read_and_hidden(name: str, bytewise: bool) -> None:
    golden = GOLDEN[name]
    passage = passed(golden, bytewise=bytewise)
    *tokens, usage, done = golden.events
    assert b'"choices":[],"usage":' in usage
    # What is on every chunk, unasked, the server gives by itself: then all of it is the client's.
    last = [usage, done] if "every" in name else [done]
    assert passage.sent == b"".join([*tokens, *last])
    counts = re.findall(rb'_tokens":(\d+)', usage)
    assert passage.request.relay.usage == Usage(int(counts[0]), int(counts[2]))


@pytest.mark.parametrize("name", ["responses_stream", "messages_stream"])
def test_usage_comes_with_the_end_elsewhere(name: str) -> None:
    passage = passed(GOLDEN[name], bytewise=True)
    counts = re.findall(rb'"(?:in|out)put_tokens":(\d+)', GOLDEN[name].body)
    usage = passage.request.relay.usage
    assert usage is not None
    counted = usage.prompt_tokens, usage.completion_tokens
    assert counted == (int(counts[-2]), int(counts[-1]))


@pytest.mark.parametrize("name", WELL)
def test_the_answer_begins_with_its_first_token(name: str) -> None:
    """Not a byte before that event is whole, and all of it from then on."""
    golden = GOLDEN[name]
    first = next(e for e in golden.events if FIRST[golden.dialect.name] in e)
    passage = Passage(golden)
    at = golden.answer.index(first) + len(first)
    passage.feed(*[golden.answer[i : i + 1] for i in range(at - 1)])
    assert passage.request.transport.sent == b""
    assert passage.request.lease.prefilling
    passage.feed(golden.answer[at - 1 : at])
    assert passage.sent.endswith(first)
    assert golden.body.startswith(passage.sent)


@pytest.mark.parametrize("name", WELL)
def test_ordinary_bytes_mark_ordinary_events(name: str) -> None:
    """Once in every event that only brings text, in no event that says more."""
    golden = GOLDEN[name]
    marks = [event.count(golden.dialect.ordinary) for event in golden.events]
    assert marks == [only_text(event) for event in golden.events]
    assert sum(marks) >= 1


def only_text(event: bytes) -> bool:
    """By the event's JSON: it brings text or names the role, and reports no end."""
    data = event.rpartition(b"data: ")[2].strip()
    if data == b"[DONE]":
        return False
    told = orjson.loads(data)
    if "choices" in told:
        return [choice["finish_reason"] for choice in told["choices"]] == [None]
    return told["type"] in ("content_block_delta", "response.output_text.delta")


@bytewise
@pytest.mark.parametrize("name", HIDDEN)
def test_a_failure_before_the_first_token_is_hidden(name: str, bytewise: bool) -> None:
    passage = passed(GOLDEN[name], bytewise=bytewise)
    assert passage.request.transport.sent == b""
    assert type(passage.error) is HIDDEN[name]
    assert passage.error.retryable


@pytest.mark.parametrize("name", BROKEN)
def test_an_abort_after_tokens_never_looks_like_an_end(name: str) -> None:
    golden = GOLDEN[name]
    passage = passed(golden, bytewise=True)
    assert isinstance(passage.error, StreamBroken)
    assert passage.error.reason == "abort"
    assert not passage.request.complete
    assert golden.body.startswith(passage.sent)
    assert b'"abort"' not in passage.sent
    assert b'stop_reason":null,"stop_sequence":null},"usage' not in passage.sent
    # In one read there was no first token before it: another backend may try.
    assert isinstance(passed(golden, bytewise=False).error, AnswerAborted)


@bytewise
@pytest.mark.parametrize("name", [n for n in STREAMS if n.startswith("dead")])
def test_an_engine_that_dies_after_tokens_is_said(name: str, bytewise: bool) -> None:
    golden = GOLDEN[name]
    if not bytewise and golden.dialect.name != "responses":
        # In one read nothing was said before it: another backend may try.
        assert isinstance(passed(golden, bytewise=False).error, BackendError)
        return
    passage = passed(golden, bytewise=bytewise)
    error = passage.error
    assert isinstance(error, StreamBroken)
    if golden.dialect.name == "responses":  # cut without a word
        assert passage.sent == golden.body
        assert error.reason == "cut"
    else:
        told = next(event for event in golden.events if b'"error":' in event)
        assert passage.sent == golden.body[: golden.body.index(told)]
        assert error.reason == "error_event"
        if golden.dialect.name != "messages":  # whose text hides what happened
            assert type(error.of_backend) is EngineDead


@bytewise
@pytest.mark.parametrize(
    "name", [n for n, each in GOLDEN.items() if n not in STREAMS and n not in HIDDEN]
)
def test_a_plain_answer_passes_as_it_came(name: str, bytewise: bool) -> None:
    golden = GOLDEN[name]
    passage = passed(golden, bytewise=bytewise)
    assert passage.error is None
    head, _, body = passage.request.transport.sent.partition(b"\r\n\r\n")
    assert body == golden.body
    assert head.startswith(golden.head.partition(b"\r\n")[0])
    usage = passage.request.relay.usage
    if golden.status == 200 and golden.path.startswith("/v1/") and b'"usage"' in golden.body:
        counts = [int(n) for n in re.findall(rb'"(?:in|out)put_tokens":(\d+)', golden.body)]
        counts = counts or [
            int(n) for n in re.findall(rb'"(?:prompt|completion)_tokens":(\d+)', golden.body)
        ]
        assert usage is not None
        assert [usage.prompt_tokens, usage.completion_tokens] == counts[:2]
    else:
        assert usage is None
