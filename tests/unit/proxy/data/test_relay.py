"""Streams through the relay by transcript: bytes in, bytes to the client out, at every split."""

from math import inf

import pytest

from penstock.balancing.ask import Ask
from penstock.proxy.data.json_relay import WHOLE_BYTES_MAX
from penstock.proxy.dialects import CHAT, COMPLETIONS, MESSAGES, RESPONSES, TRANSCRIPTS, Dialect
from penstock.proxy.dialects.dialect import Usage, whole_of
from penstock.proxy.errors.backend import (
    AnswerAborted,
    AnswerCut,
    AnswerDropped,
    AnswerEmpty,
    BackendBusy,
    BackendDraining,
    BackendError,
    BackendRefused,
    EngineDead,
    InternalFault,
    StreamBroken,
)
from tests.unit.proxy.data.relayed import (
    DEAD,
    DONE,
    DRAINING,
    ERROR,
    JSON,
    ROLE,
    SSE,
    TOKENS,
    USAGE,
    Request,
    at_every_split,
    chat,
    in_pieces,
)

ALL = b"".join(TOKENS)
PING = b": ping\n\n"
FAULT = ERROR.replace(b"503", b"400")
WITH_USAGE = b',"usage":{"prompt_tokens":7,"completion_tokens":1}}\n\n'
# --enable-force-include-usage: on every chunk and in one of its own, as without a proxy.
OWN_USAGE = b"".join([token.replace(b"}\n\n", WITH_USAGE) for token in TOKENS]) + USAGE + DONE
AUDIO = (
    b'data: {"id":"trsc-1","object":"transcription.chunk","created":1,"model":"w","choices":'
    b'[{"delta":{"content":"%b"}}]}\n\n'
)
AUDIO_LAST = AUDIO.replace(b'"%b"}', b'"%b"},"finish_reason":"stop","stop_reason":null')
AUDIO_USAGE = AUDIO.replace(b'[{"delta":{"content":"%b"}}]', b"[]").replace(
    b"}\n\n", b',"usage":{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13}}\n\n'
)
# Two pieces of audio: each has its own reason to finish.
AUDIO_PIECES = [AUDIO % b"a", AUDIO_LAST % b"b", AUDIO % b" c", AUDIO_LAST % b"", AUDIO_USAGE]
SPOKEN = b"".join(AUDIO_PIECES) + DONE
SHOWN, HIDDEN = {"hide_usage": False}, {"hide_usage": True}


@pytest.mark.parametrize(
    ("dialect", "options", "stream", "body", "usage", "tokens"),
    [
        (CHAT, HIDDEN, ALL + USAGE + DONE, ALL + DONE, Usage(7, 3, 4), 5),
        (CHAT, SHOWN, TOKENS[0] + USAGE + DONE, TOKENS[0] + USAGE + DONE, Usage(7, 3, 4), 1),
        (CHAT, HIDDEN, OWN_USAGE, OWN_USAGE, Usage(7, 3, 4), 5),
        (CHAT, HIDDEN, TOKENS[0] + FAULT + DONE, TOKENS[0] + FAULT + DONE, None, 1),
        (CHAT, HIDDEN, TOKENS[0] + b"data: [DONE]\n", TOKENS[0] + b"data: [DONE]\n", None, 1),
        (TRANSCRIPTS, SHOWN, SPOKEN, SPOKEN, Usage(9, 4, None), None),
    ],
    ids=["usage", "asked for", "the backend's own", "refused", "no empty line", "transcription"],
)
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"], ids=["lf", "cr lf"])
def test_a_whole_stream_passes_the_same_at_every_split(
    dialect: Dialect,
    options: dict[str, bool],
    stream: bytes,
    body: bytes,
    usage: Usage | None,
    tokens: int | None,
    line_end: bytes,
) -> None:
    stream, body = stream.replace(b"\n", line_end), body.replace(b"\n", line_end)
    bytewise = in_pieces(Request(dialect, **options), stream, 1).end()  # type: ignore[arg-type]
    for request in (bytewise, *at_every_split(stream, dialect, **options)):
        assert (request.body, request.complete, request.ends) == (body, True, [None])
        assert request.relay.usage == usage
        assert tokens is None or request.lease.generated_tokens == tokens


def test_usage_beside_the_last_token_alone_is_not_the_backends_own() -> None:
    last = TOKENS[-1].replace(b"}\n\n", WITH_USAGE)
    for pieces in ((TOKENS[0], last, USAGE, DONE), (TOKENS[0] + last + USAGE + DONE,)):
        assert Request().feed(*pieces).body == TOKENS[0] + last + DONE


def test_each_write_ends_with_an_event() -> None:
    """So that a ping or an error may come between any two writes."""
    for cut in range(len(ALL)):
        request = Request().feed(ALL[:cut])
        assert request.body == b"" or request.body.endswith(b"\n\n")


def test_the_status_waits_for_the_first_token() -> None:
    request = Request().feed(PING, PING)
    assert request.transport.sent == b""
    assert request.backend.queued_prefill_tokens == 7
    request.feed(TOKENS[0])
    assert request.transport.sent.startswith(b"HTTP/1.1 200 OK\r\n")
    assert request.body == PING + PING + TOKENS[0]
    assert (request.backend.queued_prefill_tokens, request.backend.streams) == (0, 1)


CREATED = b'event: response.created\ndata: {"type":"response.created","response":{"id":"r"}}\n\n'
START = (
    b'event: message_start\ndata: {"type":"message_start","message":{"usage":'
    b'{"input_tokens":7,"output_tokens":0}}}\n\n'
)
M_PING = b'event: ping\ndata: {"type":"ping"}\n\n'
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
ITEM = b'event: response.output_item.added\ndata: {"type":"response.output_item.added"}\n\n'
TEXT = b'data: {"choices":[{"index":0,"text":%b,"finish_reason":null}]}\n\n'


@pytest.mark.parametrize(
    ("dialect", "preamble", "first"),
    [
        (
            RESPONSES,
            CREATED + b'event: response.in_progress\ndata: {"type":"response.in_progress"}\n\n',
            ITEM,
        ),
        (
            MESSAGES,
            START + M_PING,
            b'event: content_block_start\ndata: {"type":"content_block_start","index":0}\n\n',
        ),
        (COMPLETIONS, PING, TEXT % b'"x"'),
        (CHAT, ROLE, TOKENS[0]),
        *(
            (CHAT, b"", ROLE.replace(*change))
            for change in (
                (b'"content":""', b'"content":"x"'),
                (b'"content":""', b'"content":"","tool_calls":[{"index":0}]'),
                (b'"finish_reason":null', b'"finish_reason":"stop"'),
            )
        ),
    ],
)
def test_what_counts_as_the_first_token(dialect: Dialect, preamble: bytes, first: bytes) -> None:
    """The role comes with it, but also before the end of what never had one."""
    request = Request(dialect)
    for cut in range(len(preamble)):
        request = Request(dialect).feed(preamble[:cut], preamble[cut:])
        assert request.transport.sent == b""
        assert request.lease.prefilling
    request.feed(first)
    assert request.relay.committed
    assert request.body == preamble + first


TWO = ROLE[:-4] + b"," + ROLE[ROLE.index(b'{"index"') :].replace(b'"index":0', b'"index":1')


@pytest.mark.parametrize(
    ("dialect", "events", "opens"),
    [
        (CHAT, ROLE, True),
        (CHAT, PING + ROLE, True),
        (CHAT, TWO, True),
        (CHAT, PING, False),
        (CHAT, USAGE, False),
        (CHAT, ERROR, False),
        (CHAT, ROLE[:-1], False),
        (CHAT, ROLE + chat(b"a"), False),
        (MESSAGES, START, True),
        (MESSAGES, M_PING, False),
        (RESPONSES, CREATED, False),  # vLLM sends it before it has scheduled the request
        (COMPLETIONS, TEXT % b'""', False),  # it counts as the first token
    ],
)
def test_what_opens_a_stream(dialect: Dialect, events: bytes, opens: bool) -> None:
    request = Request(dialect).feed(events)
    assert bool(request.opened) == opens
    assert (request.relay.answering_s < inf) == opens
    if opens:
        assert not request.relay.committed
        assert request.body == b""


def test_a_stream_opens_once_and_without_a_prompt_in_a_queue_never() -> None:
    request = Request().feed(ROLE, ROLE)
    assert len(request.opened) == 1
    request.lease.answering(1.0)
    request.relay.answering_s = inf
    request.feed(ROLE, chat(b"a"))
    assert len(request.opened) == 1
    assert request.body == ROLE * 3 + chat(b"a")
    ask = Ask("/", prompt_tokens=7, stream=True, engine=False)
    assert not Request(ask=ask).feed(ROLE).opened


AUDIO_ERROR = b'data: {"error": {"message": "no", "type": "x", "param": null, "code": %d}}\n\n'


@pytest.mark.parametrize("bare_before", [False, True])
@pytest.mark.parametrize(
    ("dialect", "events", "error"),
    [
        (CHAT, ERROR + DONE, BackendRefused),
        (CHAT, PING + ERROR + DONE, BackendRefused),
        (CHAT, ROLE + ERROR.replace(b"busy", b"EngineCore encountered an issue."), EngineDead),
        (COMPLETIONS, ERROR.replace(b"busy", DRAINING), BackendDraining),
        (COMPLETIONS, ERROR.replace(b"busy", rb"\"message\": \"" + DRAINING), BackendRefused),
        (CHAT, ROLE + ROLE + chat(b"", b'"abort"') + DONE, AnswerAborted),
        (CHAT, b"", AnswerEmpty),
        # So a vLLM that is ending sends away what it is asked: usage was asked for, and is missing.
        (CHAT, DONE, AnswerEmpty),
        (CHAT, ROLE + DONE, AnswerEmpty),
        (COMPLETIONS, DONE, AnswerEmpty),
        (MESSAGES, START.replace(b'"usage"', b'"no"') + STOP, AnswerEmpty),
        (MESSAGES, STOP, AnswerEmpty),
        (
            MESSAGES,
            START + b'event: error\ndata: {"type":"error","error":{"type":"internal_error"}}\n\n',
            InternalFault,
        ),
        (
            RESPONSES,
            b'event: response.failed\ndata: {"type":"response.failed"}\n\n',
            InternalFault,
        ),
        (TRANSCRIPTS, AUDIO_ERROR % 500 + DONE, InternalFault),
        (TRANSCRIPTS, AUDIO_ERROR % 503 + DONE, BackendBusy),
    ],
)
def test_a_failure_before_the_first_token_stays_ours(
    dialect: Dialect, events: bytes, error: type[BackendError], bare_before: bool
) -> None:
    for request in at_every_split(events, dialect, bare_before=bare_before):
        assert request.transport.sent == b""
        assert isinstance(request.error, error)
        assert request.error.retryable
        assert error is not AnswerEmpty or request.error.suspicious


@pytest.mark.parametrize("head", [SSE, JSON, JSON.replace(b"json", b"pdf")])
def test_who_is_told_that_an_answer_begins_has_no_use_for_the_body_again(head: bytes) -> None:
    """From then on no failure is one that another backend may mend."""
    stream = ROLE + ALL + USAGE + DONE
    if head == JSON:
        stream = b'{"x":"' + b"x" * WHOLE_BYTES_MAX + b'"}'
    cuts = range(len(stream) + 1) if head == SSE else (0, 1, len(stream) - 1, len(stream))
    for cut in cuts:
        request = Request(head=head).feed(stream[:cut])
        assert len(request.begun) == request.relay.committed, cut
        assert not any(request.begun)  # told before the client has anything
        request.relay.lost(AnswerCut())
        assert request.error is None or request.error.retryable != bool(request.begun), cut


def both(first: bytes = b"null", second: bytes = b"null") -> bytes:
    """One chunk with a choice each, as some servers pack them."""
    return (
        b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":%b},'
        b'{"index":1,"delta":{"content":"b"},"finish_reason":%b}]}\n\n' % (first, second)
    )


APART, PACKED = (chat(b"a"), chat(b"b", index=1)), (both(),)
# By their dialect: what comes, how much of it the client gets, and why it breaks.
BROKEN = [
    (CHAT, (TOKENS[0], TOKENS[1] + ERROR + DONE), TOKENS[0] + TOKENS[1], "error_event"),
    (CHAT, (TOKENS[0], TOKENS[1] + DEAD + DONE), TOKENS[0] + TOKENS[1], "error_event"),
    (CHAT, (TOKENS[0], TOKENS[1] + chat(b"x", b'"abort"') + DONE), ALL[: len(b"".join(TOKENS[:2]))],
     "abort"),
    # No [DONE], yet a clean end of the connection: the client must not take it for whole.
    (CHAT, TOKENS[:2], TOKENS[0] + TOKENS[1], "unfinished"),
    (CHAT, (TOKENS[0], TOKENS[1][:30]), TOKENS[0], "unfinished"),
    (TRANSCRIPTS, (AUDIO % b"a", AUDIO_ERROR % 500 + DONE), AUDIO % b"a", "error_event"),
    # Also cut behind a piece of audio, which looks like an end.
    *((TRANSCRIPTS, AUDIO_PIECES[:n], b"".join(AUDIO_PIECES[:n]), "unfinished") for n in (1, 2, 3)),
    (TRANSCRIPTS, AUDIO_PIECES[:4], b"".join(AUDIO_PIECES[:4]), "unfinished"),
    # In one read with an event that is none: as many marks as events, and one of another kind.
    *((CHAT, (*begun, both() + ERROR), b"".join(begun) + both(), "error_event")
      for begun in (APART, PACKED)),
    *((CHAT, (*begun, both() + chat(b"", b'"abort"')), b"".join(begun) + both(), "abort")
      for begun in (APART, PACKED)),
    (CHAT, (both(), both(b'"abort"', b"null")), both(), "abort"),
    (CHAT, (both(), both(b"null", b'"abort"')), both(), "abort"),
    *((CHAT, (chat(b"a"), ERROR.replace(b"503", code), DONE), chat(b"a"), "error_event")
      for code in (b"0", b"-1", b"200", b"99999999999999999999", b'"503"', b"true")),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "pieces", "body", "reason"), BROKEN)
def test_a_failure_after_tokens_ends_the_stream_as_broken(
    dialect: Dialect, pieces: tuple[bytes, ...], body: bytes, reason: str
) -> None:
    """With the tokens that came before it, and without the end that vLLM puts after it."""
    request = Request(dialect, ask=Ask("/", prompt_tokens=7, choices=2, stream=True)).feed(*pieces)
    if not request.ends:
        request.end()
    assert (request.broken, request.body, request.complete) == (reason, body, False)
    assert isinstance(request.error, StreamBroken)
    assert not request.error.retryable
    dead = DEAD in b"".join(pieces)
    assert request.error.fatal is dead
    if dead or ERROR in b"".join(pieces):
        assert type(request.error.of_backend) is (EngineDead if dead else BackendBusy)


@pytest.mark.parametrize(
    ("pieces", "kind", "body"),
    [
        ((PING, TOKENS[0][:10]), AnswerCut, b""),
        ((TOKENS[0], TOKENS[1][:10]), StreamBroken, TOKENS[0]),
        ((TOKENS[0], DONE), None, TOKENS[0] + DONE),  # by its own end it is whole
        ((TOKENS[0], DONE, TOKENS[1][:9]), StreamBroken, TOKENS[0] + DONE),
    ],
)
def test_what_a_cut_means_depends_on_what_had_come(
    pieces: tuple[bytes, ...], kind: type[BackendError] | None, body: bytes
) -> None:
    request = Request().feed(*pieces)
    request.relay.lost(AnswerCut())
    assert type(request.error) is (kind or type(None))
    assert request.error is None or request.error.retryable is (kind is AnswerCut)
    assert (request.body, request.complete) == (body, kind is None)
    for count in range(1, 5):
        spoken = Request(TRANSCRIPTS).feed(*AUDIO_PIECES[:count])
        spoken.relay.lost(AnswerCut())
        assert spoken.broken


def test_an_error_in_the_read_of_the_first_token_is_retryable() -> None:
    request = Request().feed(TOKENS[0] + ERROR + DONE)
    assert type(request.error) is BackendBusy
    assert request.transport.sent == b""


def test_a_cut_that_may_mean_a_full_queue_is_no_death() -> None:
    """vLLM cannot say in a responses stream that it is full: it cuts it after the preamble."""
    for dialect, kind, fatal in ((RESPONSES, AnswerDropped, False), (CHAT, AnswerCut, True)):
        request = Request(dialect).feed(CREATED if dialect is RESPONSES else PING)
        request.relay.lost(AnswerCut())
        assert type(request.error) is kind
        assert request.error.retryable
        assert request.error.fatal is fatal


def test_the_end_may_come_twice_and_comments_anywhere() -> None:
    pieces = (PING, TOKENS[0], PING + TOKENS[1] + PING, DONE + DONE)
    request = Request().feed(*pieces).end()
    assert request.body == b"".join(pieces)
    assert request.complete
    assert request.lease.generated_tokens == 2


def test_a_stream_is_over_with_its_own_end_and_not_before() -> None:
    request = Request().feed(TOKENS[0])
    assert not request.relay.over
    assert request.feed(DONE).relay.over
    assert not request.feed(b"data: more").relay.over


# Choices and counts -----------------------------------------------------------------------------


def test_each_prompt_of_several_is_released_by_its_first_token() -> None:
    ask = Ask("/", prompt_tokens=90, prompts=3, choices=1, stream=True)
    request = Request(COMPLETIONS, ask=ask).feed(chat(b"a", index=2))
    assert request.backend.queued_prefill_tokens == 60
    request.feed(chat(b"b", index=2) + chat(b"c", index=0))
    assert request.backend.queued_prefill_tokens == 30
    request.feed(chat(b"d", index=1))
    assert request.backend.queued_prefill_tokens == 0
    assert request.lease.generated_tokens == 4
    ask = Ask("/", prompt_tokens=90, prompts=2, stream=True)
    assert Request(COMPLETIONS, ask=ask).feed(both()).backend.queued_prefill_tokens == 0


@pytest.mark.parametrize("begun", [APART, PACKED])
def test_a_chunk_of_two_choices_makes_up_for_nothing(begun: tuple[bytes, ...]) -> None:
    ask = Ask("/", prompt_tokens=7, choices=2, stream=True)
    request = Request(ask=ask).feed(*begun, both() + USAGE)
    assert request.relay.usage == Usage(7, 3, 4)
    assert USAGE not in request.body
    assert Request(ask=ask).feed(*begun, both() + DONE).end().ends == [None]
    if begun is APART:
        more = chat(b"c") + chat(b"d", index=1)
        assert Request(ask=ask).feed(*begun, more).lease.generated_tokens == 4


@pytest.mark.parametrize(
    "counts",
    [
        b'"prompt_tokens":-1,"completion_tokens":1',
        b'"prompt_tokens":1,"completion_tokens":-1',
        b'"prompt_tokens":4294967296,"completion_tokens":1',
        b'"prompt_tokens":1,"completion_tokens":1e30',
        b'"prompt_tokens":1,"completion_tokens":99999999999999999999999999',
        b'"prompt_tokens":1.5,"completion_tokens":1',
        b'"prompt_tokens":true,"completion_tokens":1',
        b'"prompt_tokens":"7","completion_tokens":1',
        b'"prompt_tokens":[],"completion_tokens":1',
        b'"prompt_tokens":7,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":8}',
        b'"prompt_tokens":7,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":-8}',
    ],
)
def test_counts_that_no_request_has_are_none(counts: bytes) -> None:
    whole = whole_of(b'{"usage":{%b}}' % counts)
    assert whole is not None
    for dialect in (CHAT, COMPLETIONS, MESSAGES, RESPONSES):
        assert dialect.usage(whole) is None
    event = b'data: {"choices":[],"usage":{%b}}\n\n' % counts
    request = Request(hide_usage=False).feed(chat(b"a"), event, DONE).end()
    assert (request.ends, request.relay.usage) == ([None], None)
    assert request.body == chat(b"a") + event + DONE
    largest = whole_of(b'{"usage":{"prompt_tokens":1073741824,"completion_tokens":0}}')
    assert largest is not None
    assert CHAT.usage(largest) == Usage(1_073_741_824, 0)
