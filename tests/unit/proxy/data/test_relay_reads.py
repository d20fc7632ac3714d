"""Streams in odd reads, events too large to hold, and comments that never end."""

from collections.abc import Iterator
from random import Random

import pytest

from penstock.proxy.data.event_relay import (
    EVENT_BYTES_MAX,
    HELD_BYTES_MAX,
    HELD_EVENTS_MAX,
    QUIET_BYTES_MAX,
    EventRelay,
)
from penstock.proxy.dialects import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Dialect
from penstock.proxy.dialects.choices import Choices
from penstock.proxy.dialects.dialect import Event, Usage, whole_of
from penstock.proxy.errors.backend import AnswerCut, AnswerMute, EngineDead, InternalFault
from tests.unit.proxy.data.playbook import END, STREAM, Play, chunk, post
from tests.unit.proxy.data.playbook import chat as chat_request
from tests.unit.proxy.data.relayed import (
    DEAD,
    DONE,
    ERROR,
    ROLE,
    TOKENS,
    USAGE,
    Request,
    at_every_split,
    chat,
    in_pieces,
)

LINE_ENDS = pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=["lf", "cr lf", "cr"])
# Of these lines, ends and events are made; NUL is what no text has.
ALPHABET = [b"\n", b"\r", b"\0", b"\n\n", b"\r\n\r\n", b"data: x", b": c", b":", *TOKENS]
PING = b": ping\n\n"
PINGS, JOINED = PING * 1_000, b": ping\n" * 1_000
MIB = 1_048_576
LARGE = b"x" * (2 * EVENT_BYTES_MAX)


def test_any_bytes_at_any_split_go_on_untouched_and_in_their_order() -> None:
    pieces = [TOKENS[0], b"data: a", b"b\0", b"c\0", b"d\n\n", DONE]
    assert Request().feed(*pieces).body == b"".join(pieces)
    for seed in range(60):
        rng = Random(seed)
        request = Request().feed(TOKENS[0])
        sent = TOKENS[0]
        for _ in range(rng.randrange(1, 12)):
            piece = b"".join(rng.choices(ALPHABET, k=rng.randrange(1, 6)))
            cut = rng.randrange(len(piece) + 1)
            request.feed(piece[:cut], piece[cut:])
            sent += piece
            assert sent.startswith(request.body), seed
        request.feed(b"\n\n\n\n" + DONE)
        assert request.body == sent + b"\n\n\n\n" + DONE, seed


@pytest.mark.parametrize("at", range(1, 6))
def test_a_read_may_end_inside_an_event_behind_any_other(at: int) -> None:
    """Also behind a last token, a comment or usage alone: none of them is an ordinary event."""
    events = [ROLE, chat(b"a"), PING, chat(b"b"), chat(b"c", b'"stop"'), USAGE, DONE]
    for cut in range(1, len(events[at + 1])):
        pieces = [*events[:at], events[at] + events[at + 1][:cut], events[at + 1][cut:]]
        request = Request(hide_usage=False).feed(*pieces, *events[at + 2 :]).end()
        assert (request.ends, request.body) == ([None], b"".join(events))
        assert request.lease.generated_tokens == 3


@pytest.mark.parametrize("body", [b"[" * 5_000, b'{"usage":{"a":' * 3_000, b'{"usage":"\xff"}'])
def test_what_a_backend_sends_cannot_raise(body: bytes) -> None:
    whole = whole_of(body)
    for dialect in (CHAT, COMPLETIONS, MESSAGES, RESPONSES):
        assert whole is None or dialect.usage(whole) is None
        dialect.read(b"data: %b\n\n" % body)
        dialect.read(b'data: {"type":"\xff","error":"\xff"}\n\n')


@pytest.mark.once  # no class can inherit from a compiled dialect
def test_text_that_looks_like_framing_is_neither_counted_nor_parsed() -> None:
    """Counting `data: ` counts text too: at best every such read would be parsed for nothing."""

    class Watched(Choices):
        reads = 0

        def read(self, event: bytes) -> Event:
            self.reads += 1
            return super().read(event)

    dialect = Watched("chat")
    request = Request(dialect).feed(TOKENS[0])
    reads = dialect.reads
    request.feed(chat(rb"data: data: x\n\n"), chat(b"a") + chat(b"data: "))
    assert dialect.reads == reads
    assert request.lease.generated_tokens == 4


# Comments that never end ------------------------------------------------------------------------


def test_comments_without_end_after_tokens_break_the_stream() -> None:
    request = Request().feed(TOKENS[0], *[PINGS] * (QUIET_BYTES_MAX // len(PINGS)))
    assert not request.ends
    assert request.feed(PINGS).broken == "no_events"


def test_comments_among_tokens_do_not() -> None:
    request = Request().feed(TOKENS[0], TOKENS[0])
    for _ in range(2 * QUIET_BYTES_MAX // len(PINGS)):
        request.feed(PINGS, TOKENS[0])
    assert not request.ends


@pytest.mark.parametrize("comments", [PINGS, JOINED], ids=["events", "one event"])
def test_comments_without_end_after_the_end_end_it_whole(comments: bytes) -> None:
    most = max(QUIET_BYTES_MAX, 2 * EVENT_BYTES_MAX)
    request = Request().feed(TOKENS[0], DONE, *[comments] * (most // len(comments) + 1))
    assert request.ends == [None]
    assert request.complete


def test_comments_without_end_before_a_token_can_still_be_tried_elsewhere() -> None:
    request = Request().feed(PING * HELD_EVENTS_MAX)
    assert not request.ends
    request.feed(PING)
    assert isinstance(request.error, AnswerMute)
    assert request.error.retryable
    assert not request.transport.sent


@LINE_ENDS
def test_comments_in_one_event_without_end_are_no_token(line_end: bytes) -> None:
    pings = JOINED.replace(b"\n", line_end)
    request = Request().feed(*[pings] * (2 * HELD_BYTES_MAX // len(pings)))
    assert isinstance(request.error, AnswerMute)
    assert request.lease.prefilling
    assert not request.transport.sent
    after = Request().feed(TOKENS[0], *[pings] * (2 * EVENT_BYTES_MAX // len(pings)))
    assert after.broken == "no_events"
    assert after.lease.generated_tokens == 1
    assert len(after.transport.sent) < 10_000


def test_comments_in_the_event_of_a_large_token_are_no_reason_to_break() -> None:
    large = JOINED + b"data: " + LARGE + b"\n\n"
    request = Request().feed(large[:MIB], large[MIB : 3 * MIB], large[3 * MIB :], TOKENS[0])
    assert not request.ends
    assert request.lease.generated_tokens == 2


# Events too large to hold: they pass in pieces, and their beginning tells what they are ---------

MADE = (
    b"event: response.output_text.delta\n"
    b'data: {"type":"response.output_text.delta","delta":"x"}\n\n'
)
# As vLLM writes it: the type comes last.
COMPLETED = (
    b'event: response.completed\ndata: {"response":{"id":"resp_1","object":"response","output":"%b"'
    b'},"type":"response.completed"}\n\n' % LARGE
)


def test_an_event_too_large_to_hold_passes_in_pieces() -> None:
    big = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % LARGE
    request = Request().feed(TOKENS[0])
    for at in range(0, len(big), 50_000):
        request.feed(big[at : at + 50_000])
        assert isinstance(request.relay, EventRelay)
        assert len(request.relay._tail) <= EVENT_BYTES_MAX
    in_pieces(request, TOKENS[1] + DONE).end()  # what follows is read as ever
    assert request.ends == [None]
    assert request.body == TOKENS[0] + big + TOKENS[1] + DONE
    assert request.lease.generated_tokens == 3


def test_a_preamble_without_end_is_committed_at_the_limit() -> None:
    comment = b": " + b"x" * 65_000 + b"\n\n"
    request = Request().feed(*[comment] * (HELD_BYTES_MAX // 65_000 + 2))
    assert request.relay.committed


def test_a_long_preamble_is_held_whole() -> None:
    """`response.created` repeats the request."""
    created = b'data: {"type":"response.created","response":{"instructions":"%b"}}\n\n'
    request = in_pieces(Request(RESPONSES), created % LARGE[: HELD_BYTES_MAX - 1_000], 60_000)
    assert not request.relay.committed
    assert request.lease.prefilling


@LINE_ENDS
@pytest.mark.parametrize("size_bytes", [65_536, 262_143, EVENT_BYTES_MAX + 1])
def test_a_large_end_of_a_responses_stream_is_its_end(line_end: bytes, size_bytes: int) -> None:
    last = COMPLETED.replace(b"\n", line_end)
    request = in_pieces(Request(RESPONSES).feed(MADE), last, size_bytes)
    assert request.relay.over
    assert request.end().ends == [None]
    assert request.body == MADE + last
    together = in_pieces(Request(RESPONSES), MADE + last, len(MADE) + EVENT_BYTES_MAX // 2)
    assert together.end().ends == [None]


@pytest.mark.parametrize("begun", [MADE, b""], ids=["after tokens", "before"])
def test_a_large_event_is_read_in_turns(begun: bytes) -> None:
    """Decoding it takes milliseconds, and its last read may be a short one."""
    for size_bytes, dear in ((60_000, False), (80_000, True)):
        last = COMPLETED.replace(LARGE, LARGE[:size_bytes])
        request = in_pieces(Request(RESPONSES).feed(begun), last[:-1], 20_000)
        assert request.source.dear is dear
        request.feed(b"\n")
        assert not request.source.dear


def test_the_usage_in_a_large_end_is_read_before_its_output_and_after_it() -> None:
    usage = b'"usage":{"input_tokens":3,"output_tokens":9}'
    for event in (
        COMPLETED.replace(b'"output":', usage + b',"output":'),
        COMPLETED.replace(b'},"type"', b",%b}," % usage + b'"usage":{"input_tokens":1},"type"'),
    ):
        request = in_pieces(Request(RESPONSES).feed(MADE), event).end()
        assert request.relay.usage is not None
        assert request.relay.usage.completion_tokens == 9


def test_a_large_end_that_is_cut_or_only_quoted_is_no_end() -> None:
    quotes = MADE.replace(b'"delta":"x"', b'"delta":"event: response.completed %b"' % LARGE)
    for event in (COMPLETED[:-9], quotes):
        request = in_pieces(Request(RESPONSES).feed(MADE), event)
        assert not request.relay.over
        assert request.end().broken
    request = in_pieces(Request(RESPONSES).feed(MADE), COMPLETED[:-9])
    request.relay.lost(AnswerCut())
    assert request.broken


@pytest.mark.parametrize(
    ("dialect", "event", "kind"),
    [
        (RESPONSES, b'event: response.failed\ndata: {"response":"%b"}\n\n' % LARGE, InternalFault),
        (RESPONSES, b'data: {"type":"error","message":"%b"}\n\n' % LARGE, InternalFault),
        (
            MESSAGES,
            b'event: error\ndata: {"type":"error","error":"%b"}\n\n' % LARGE,
            InternalFault,
        ),
        (CHAT, DEAD.replace(b"issue.", LARGE), EngineDead),
    ],
    ids=["responses", "unnamed", "messages", "dead engine"],
)
def test_a_large_error_is_an_error(dialect: Dialect, event: bytes, kind: type[Exception]) -> None:
    request = in_pieces(Request(dialect), event)
    assert isinstance(request.error, kind)
    assert request.transport.sent == b""


@pytest.mark.parametrize("before", [b"", TOKENS[0]], ids=["first", "after a token"])
def test_a_large_error_whose_status_comes_last_is_passed_on_and_no_failure(before: bytes) -> None:
    """It may be a 4xx, which all other backends would give, too."""
    event = b'data: {"error": {"message": "%b", "code": 400}}\n\n' % LARGE
    request = in_pieces(Request(CHAT).feed(before), event)
    assert request.relay.over
    assert (request.end().ends, request.relay.served) == ([None], False)
    assert request.lease.generated_tokens == len(before[:1])
    assert request.body == before + event


# Streams of the responses API --------------------------------------------------------------------

CREATED = (
    b'event: response.created\ndata: {"response":{"id":%b,"object":"response"%b},'
    b'"sequence_number":0,"type":"response.created"}\n\n'
)
ITEM = b'event: x\ndata: {"item":{"id":"msg_1"},"type":"response.output_item.added"}\n\n'
ENDED = (
    b"event: response.completed\n"
    b'data: {"type":"response.completed","response":{%b,"usage":{"input_tokens":7,'
    b'"output_tokens":1}}}\n\n'
)


def test_the_id_of_a_streamed_response_is_told_once_wherever_it_is_cut() -> None:
    for request in at_every_split(CREATED % (b'"resp_1"', b"") + ITEM, RESPONSES):
        assert request.made == ["resp_1"]


@pytest.mark.parametrize("odd", [b"7", b"null", b"{}", b'["resp_1"]'])
def test_an_odd_id_is_passed_on_and_not_told(odd: bytes) -> None:
    stream = CREATED % (odd, b"") + ITEM
    request = Request(RESPONSES).feed(stream)
    assert (request.made, request.body) == ([], stream)


def test_a_large_preamble_tells_whose_response_it_is_and_is_no_token() -> None:
    created = CREATED % (b'"resp_1"', b',"instructions":"%b"' % (b"x" * 2 * HELD_BYTES_MAX))
    request = in_pieces(Request(RESPONSES), created)
    assert request.made == ["resp_1"]
    assert request.relay.committed
    assert request.lease.first_token_s is None
    request.feed(MADE)
    assert not request.lease.prefilling
    assert request.body == created + MADE


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
    """What it repeats comes from the client's own request."""
    request = in_pieces(Request(RESPONSES).feed(MADE, MADE), ENDED % fields, 60_000)
    assert request.relay.over
    assert request.end().ends == [None]
    assert request.body == MADE + MADE + ENDED % fields
    assert request.relay.usage == Usage(7, 1, None)


def test_tokens_that_none_of_a_responses_events_show_are_an_answer() -> None:
    """A reasoning parser may keep the only ones there were."""
    last = ENDED % b'"status":"incomplete"'
    request = Request(RESPONSES).feed(last).end()
    assert (request.ends, request.body) == ([None], last)


# One that its engine says failed: its client gets the API's own last event.
TOKEN = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta"}\n\n'
FAILED = (
    b'event: response.failed\ndata: {"type":"response.failed","response":{"id":"resp_1","status":'
    b'"failed","error":{"code":"server_error","message":"out of memory"}}}\n\n'
)


@pytest.fixture
def play() -> Iterator[Play]:
    playing = Play(2)
    playing.client.sends(post("/v1/responses", b'{"model":"m","input":"x","stream":true}'))
    yield playing
    playing.close()


def test_after_the_first_token_its_own_event_ends_the_answer(play: Play) -> None:
    play["b1"].sends(STREAM, chunk(CREATED % (b'"resp_1"', b"")), chunk(TOKEN))
    play["b1"].sends(chunk(FAILED), END)
    assert play.client.written.endswith(TOKEN + b"\r\n" + chunk(FAILED) + END)
    assert not play.client.closed
    assert play.metrics.stream_failures["error_event",] == 1
    assert play.backends[0].failures_total == 1


@pytest.mark.parametrize("first", [TOKENS[1], b": ping\n\n"])
def test_a_refusal_after_tokens_is_counted_beside_the_answer(first: bytes) -> None:
    play = Play(1)
    play.client.sends(chat_request())
    fault = ERROR.replace(b"503", b"400")
    play["b1"].sends(STREAM, chunk(first), chunk(fault), chunk(DONE), END)
    assert play.metrics.stream_failures["refused",] == (first == TOKENS[1])
    assert play.metrics.attempts["ok",] == 1
    play.close()


def test_an_event_in_many_reads_is_passed_whole(play: Play) -> None:
    play["b1"].sends(STREAM, chunk(CREATED % (b'"resp_1"', b"")), chunk(TOKEN))
    for at in range(len(FAILED)):
        play["b1"].sends(chunk(FAILED[at : at + 1]))
    assert play.client.written.endswith(TOKEN + b"\r\n" + chunk(FAILED) + END)


def test_before_the_first_token_another_backend_answers(play: Play) -> None:
    play["b1"].sends(STREAM, chunk(CREATED % (b'"resp_1"', b"")), chunk(FAILED), END)
    assert b"failed" not in play.client.written
    assert b"POST" in play["b2"].head
