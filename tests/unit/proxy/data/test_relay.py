"""Streams through the relay by transcript: bytes in, bytes to the client out, at every split."""

from collections.abc import Callable

import pytest

from penstock.balancing.ask import Ask
from penstock.proxy.data.event_relay import EventRelay
from penstock.proxy.data.json_relay import WHOLE_BYTES_MAX
from penstock.proxy.data.whole_events import EVENT_BYTES_MAX, HELD_BYTES_MAX
from penstock.proxy.dialects import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Dialect
from penstock.proxy.dialects.choices import Choices
from penstock.proxy.dialects.dialect import Event, Usage
from penstock.proxy.dialects.whole import whole_of
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
    chat,
)


def at_every_split(stream: bytes, check: Callable[[Request], None], **options: object) -> None:
    for cut in range(len(stream) + 1):
        request = Request(**options)  # type: ignore[arg-type]
        request.feed(stream[:cut], stream[cut:])
        request.relay.end()
        check(request)


def test_a_stream_is_the_same_at_every_split_and_its_usage_hidden() -> None:
    def check(request: Request) -> None:
        assert request.body == b"".join(TOKENS) + DONE
        assert request.complete
        assert request.ends == [None]
        assert request.relay.usage == Usage(7, 3, 4)
        assert request.lease.generated_tokens == len(TOKENS)

    at_every_split(b"".join(TOKENS) + USAGE + DONE, check)


def test_a_client_that_asked_sees_its_usage() -> None:
    def check(request: Request) -> None:
        assert request.body == TOKENS[0] + USAGE + DONE

    at_every_split(TOKENS[0] + USAGE + DONE, check, hide_usage=False)


WITH_USAGE = b',"usage":{"prompt_tokens":7,"completion_tokens":1}}\n\n'


def test_usage_that_the_backend_gives_by_itself_is_the_clients() -> None:
    """--enable-force-include-usage: on every chunk and in one of its own, as without a proxy."""
    tokens = [token.replace(b"}\n\n", WITH_USAGE) for token in TOKENS]

    def check(request: Request) -> None:
        assert request.body == b"".join(tokens) + USAGE + DONE
        assert request.relay.usage == Usage(7, 3, 4)

    at_every_split(b"".join(tokens) + USAGE + DONE, check)


def test_usage_beside_the_last_token_alone_is_not_the_backends_own() -> None:
    last = TOKENS[-1].replace(b"}\n\n", WITH_USAGE)
    request = Request().feed(TOKENS[0], last, USAGE, DONE)
    assert request.body == TOKENS[0] + last + DONE
    together = Request().feed(TOKENS[0] + last + USAGE + DONE)
    assert together.body == TOKENS[0] + last + DONE


def test_byte_by_byte() -> None:
    stream = b"".join(TOKENS) + USAGE + DONE
    request = Request().feed(*[stream[i : i + 1] for i in range(len(stream))])
    assert request.body == b"".join(TOKENS) + DONE


def test_cr_lf_streams_too() -> None:
    stream = (b"".join(TOKENS) + USAGE + DONE).replace(b"\n", b"\r\n")

    def check(request: Request) -> None:
        assert request.body == (b"".join(TOKENS) + DONE).replace(b"\n", b"\r\n")
        assert request.lease.generated_tokens == len(TOKENS)

    at_every_split(stream, check)


def test_each_write_ends_with_an_event() -> None:
    """So that a ping or an error may come between any two writes."""
    stream = b"".join(TOKENS)
    for cut in range(len(stream)):
        request = Request().feed(stream[:cut])
        assert request.body == b"" or request.body.endswith(b"\n\n")


def test_the_status_waits_for_the_first_token() -> None:
    request = Request().feed(b": keep-alive\n\n", b": keep-alive\n\n")
    assert request.transport.sent == b""
    assert request.backend.queued_prefill_tokens == 7
    request.feed(TOKENS[0])
    assert request.transport.sent.startswith(b"HTTP/1.1 200 OK\r\n")
    assert request.body == b": keep-alive\n\n: keep-alive\n\n" + TOKENS[0]
    assert (request.backend.queued_prefill_tokens, request.backend.streams) == (0, 1)


@pytest.mark.parametrize(
    ("dialect", "preamble", "first"),
    [
        (
            RESPONSES,
            b'event: response.created\ndata: {"type":"response.created","response":{}}\n\n'
            b'event: response.in_progress\ndata: {"type":"response.in_progress"}\n\n',
            b'event: response.output_item.added\ndata: {"type":"response.output_item.added"}\n\n',
        ),
        (
            MESSAGES,
            b'event: message_start\ndata: {"type":"message_start","message":{"usage":'
            b'{"input_tokens":7,"output_tokens":0}}}\n\nevent: ping\ndata: {"type":"ping"}\n\n',
            b'event: content_block_start\ndata: {"type":"content_block_start","index":0}\n\n',
        ),
        (COMPLETIONS, b": comment\n\n", b'data: {"choices":[{"index":0,"text":"x"}]}\n\n'),
    ],
    ids=["responses", "messages", "completions"],
)
def test_what_counts_as_the_first_token(dialect: Dialect, preamble: bytes, first: bytes) -> None:
    for cut in range(len(preamble)):
        request = Request(dialect).feed(preamble[:cut], preamble[cut:])
        assert request.transport.sent == b""
        assert request.lease.prefilling
    request.feed(first)
    assert request.body == preamble + first


@pytest.mark.parametrize(
    ("dialect", "events", "error"),
    [
        (CHAT, ERROR + DONE, BackendRefused),
        (CHAT, b": ping\n\n" + ERROR + DONE, BackendRefused),
        (CHAT, ROLE + ERROR.replace(b"busy", b"EngineCore encountered an issue."), EngineDead),
        (COMPLETIONS, ERROR.replace(b"busy", DRAINING), BackendDraining),
        (COMPLETIONS, ERROR.replace(b"busy", rb"\"message\": \"" + DRAINING), BackendRefused),
        (CHAT, ROLE + ROLE + chat(b"", b'"abort"') + DONE, AnswerAborted),
        (CHAT, ROLE + DONE, AnswerEmpty),
        (CHAT, DONE, AnswerEmpty),
        (CHAT, b"", AnswerEmpty),
        (
            MESSAGES,
            b'event: message_start\ndata: {"type":"message_start"}\n\n'
            b'event: error\ndata: {"type":"error","error":{"type":"internal_error"}}\n\n',
            InternalFault,
        ),
        (MESSAGES, b'event: message_stop\ndata: {"type":"message_stop"}\n\n', AnswerEmpty),
        (
            RESPONSES,
            b'event: response.failed\ndata: {"type":"response.failed"}\n\n',
            InternalFault,
        ),
    ],
)
def test_a_failure_before_the_first_token_stays_ours(
    dialect: Dialect, events: bytes, error: type[BackendError]
) -> None:
    def check(request: Request) -> None:
        assert request.transport.sent == b""
        assert isinstance(request.ends[0], error)
        assert request.ends[0].retryable

    for cut in range(len(events) + 1):
        request = Request(dialect).feed(events[:cut], events[cut:])
        if not request.ends:
            request.relay.end()
        check(request)


def test_a_cut_before_the_first_token_is_retryable_and_after_it_is_not() -> None:
    before = Request().feed(b": ping\n\n", TOKENS[0][:10])
    before.relay.lost(AnswerCut())
    assert isinstance(before.ends[0], AnswerCut)
    assert before.transport.sent == b""
    after = Request().feed(TOKENS[0], TOKENS[1][:10])
    after.relay.lost(AnswerCut())
    assert isinstance(after.ends[0], StreamBroken)
    assert not after.ends[0].retryable
    assert after.body == TOKENS[0]
    assert not after.complete


@pytest.mark.parametrize("head", [SSE, JSON, JSON.replace(b"json", b"pdf")])
def test_who_is_told_that_an_answer_begins_has_no_use_for_the_body_again(head: bytes) -> None:
    """From then on no failure is one that another backend may mend."""
    stream = ROLE + b"".join(TOKENS) + USAGE + DONE
    if head == JSON:
        stream = b'{"x":"' + b"x" * WHOLE_BYTES_MAX + b'"}'
    cuts = range(len(stream) + 1) if head == SSE else (0, 1, len(stream) - 1, len(stream))
    for cut in cuts:
        request = Request(head=head).feed(stream[:cut])
        assert len(request.begun) == request.relay.committed, cut
        assert not any(request.begun)  # told before the client has anything
        request.relay.lost(AnswerCut())
        (error,) = request.ends
        assert error is None or error.retryable != bool(request.begun), cut


def test_an_error_after_tokens_ends_the_stream_as_broken() -> None:
    """With the tokens that came before it, and without the end that vLLM puts after it."""
    for error, cause in ((ERROR, BackendBusy), (DEAD, EngineDead)):
        request = Request().feed(TOKENS[0], TOKENS[1] + error + DONE)
        assert request.body == TOKENS[0] + TOKENS[1]
        broken = request.ends[0]
        assert isinstance(broken, StreamBroken)
        assert broken.reason == "error_event"
        assert type(broken.of_backend) is cause
        assert broken.fatal is (cause is EngineDead)
        assert not request.complete


def test_an_error_in_the_read_of_the_first_token_is_retryable() -> None:
    request = Request().feed(TOKENS[0] + ERROR + DONE)
    assert type(request.ends[0]) is BackendBusy
    assert request.transport.sent == b""


def test_a_clients_own_fault_after_tokens_passes() -> None:
    fault = ERROR.replace(b"503", b"400")
    request = Request().feed(TOKENS[0], fault, DONE)
    request.relay.end()
    assert request.body == TOKENS[0] + fault + DONE
    assert request.complete


def test_a_stream_is_whole_by_its_own_end_though_its_framing_was_cut() -> None:
    whole = Request().feed(TOKENS[0], DONE)
    whole.relay.lost(AnswerCut())
    assert whole.ends == [None]
    assert whole.complete
    more = Request().feed(TOKENS[0], DONE, TOKENS[1][:9])
    more.relay.lost(AnswerCut())
    assert isinstance(more.ends[0], StreamBroken)


def test_the_end_may_come_twice_and_comments_anywhere() -> None:
    comment = b": keep-alive\n\n"
    pieces = (comment, TOKENS[0], comment + TOKENS[1] + comment, DONE + DONE)
    request = Request().feed(*pieces)
    request.relay.end()
    assert request.body == b"".join(pieces)
    assert request.complete
    assert request.lease.generated_tokens == 2


def test_a_cut_that_may_mean_a_full_queue_is_no_death() -> None:
    """vLLM cannot say in a responses stream that it is full: it cuts it after the preamble."""
    preamble = b'event: response.created\ndata: {"type":"response.created"}\n\n'
    for dialect, kind, fatal in ((RESPONSES, AnswerDropped, False), (CHAT, AnswerCut, True)):
        request = Request(dialect).feed(preamble if dialect is RESPONSES else b": wait\n\n")
        request.relay.lost(AnswerCut())
        error = request.ends[0]
        assert type(error) is kind
        assert error.retryable
        assert error.fatal is fatal


def test_an_abort_after_tokens_ends_the_stream_as_broken() -> None:
    request = Request().feed(TOKENS[0], TOKENS[1] + chat(b"x", b'"abort"') + DONE)
    assert request.body == TOKENS[0] + TOKENS[1]
    assert isinstance(request.ends[0], StreamBroken)
    assert request.ends[0].reason == "abort"
    assert not request.complete


def test_the_role_alone_commits_nothing() -> None:
    """It comes with the first token, but also before the end of what never had one."""
    request = Request().feed(ROLE)
    assert request.transport.sent == b""
    assert request.feed(TOKENS[0]).body == ROLE + TOKENS[0]
    for first in (
        ROLE.replace(b'"content":""', b'"content":"x"'),
        ROLE.replace(b'"content":""', b'"content":"","tool_calls":[{"index":0}]'),
        ROLE.replace(b'"finish_reason":null', b'"finish_reason":"stop"'),
    ):
        assert Request().feed(first).relay.committed


def test_each_prompt_of_several_is_released_by_its_first_token() -> None:
    ask = Ask("/", prompt_tokens=90, prompts=3, choices=1, stream=True)
    request = Request(COMPLETIONS, ask=ask).feed(chat(b"a", index=2))
    assert request.backend.queued_prefill_tokens == 60
    request.feed(chat(b"b", index=2) + chat(b"c", index=0))
    assert request.backend.queued_prefill_tokens == 30
    request.feed(chat(b"d", index=1))
    assert request.backend.queued_prefill_tokens == 0
    assert request.lease.generated_tokens == 4


def test_an_event_too_large_to_hold_passes_in_pieces() -> None:
    big = b"data: " + b"x" * (3 * EVENT_BYTES_MAX) + b"\n\n"
    request = Request().feed(TOKENS[0])
    for at in range(0, len(big), 50_000):
        request.feed(big[at : at + 50_000])
        assert isinstance(request.relay, EventRelay)
        assert len(request.relay._tail) <= EVENT_BYTES_MAX
    assert request.feed(DONE).body == TOKENS[0] + big + DONE


def test_a_preamble_without_end_is_committed_at_the_limit() -> None:
    comment = b": " + b"x" * 65_000 + b"\n\n"
    request = Request()
    for _ in range(HELD_BYTES_MAX // 65_000 + 2):
        request.feed(comment)
    assert request.relay.committed


def test_a_stream_without_its_own_end_is_broken() -> None:
    """No [DONE], yet a clean end of the connection: the client must not take it for whole."""
    request = Request().feed(TOKENS[0], TOKENS[1])
    request.relay.end()
    assert isinstance(request.ends[0], StreamBroken)
    assert not request.complete


def test_half_an_event_at_the_end_is_not_passed_on() -> None:
    request = Request().feed(TOKENS[0], TOKENS[1][:30])
    request.relay.end()
    assert isinstance(request.ends[0], StreamBroken)
    assert request.body == TOKENS[0]


def test_an_end_without_its_empty_line_is_an_end() -> None:
    request = Request().feed(TOKENS[0], b"data: [DONE]\n")
    request.relay.end()
    assert request.ends == [None]
    assert request.body == TOKENS[0] + b"data: [DONE]\n"


def test_a_long_preamble_is_held_whole() -> None:
    """`response.created` repeats the request."""
    created = b'data: {"type":"response.created","response":{"instructions":"%b"}}\n\n' % (
        b"x" * (HELD_BYTES_MAX - 1_000)
    )
    request = Request(RESPONSES)
    for at in range(0, len(created), 60_000):
        request.feed(created[at : at + 60_000])
    assert not request.relay.committed
    assert request.lease.prefilling


@pytest.mark.parametrize("body", [b"[" * 5_000, b'{"usage":{"a":' * 3_000, b'{"usage":"\xff"}'])
def test_what_a_backend_sends_cannot_raise(body: bytes) -> None:
    whole = whole_of(body)
    for dialect in (CHAT, COMPLETIONS, MESSAGES, RESPONSES):
        assert whole is None or dialect.usage(whole) is None
        dialect.read(b"data: %b\n\n" % body)
        dialect.read(b'data: {"type":"\xff","error":"\xff"}\n\n')


def test_a_backends_cors_headers_are_not_passed() -> None:
    head = JSON + b"\r\naccess-control-allow-origin: *\r\nx-penstock-backend: evil"
    request = Request(head=head).feed(b"{}")
    request.relay.end()
    assert b"access-control" not in request.transport.sent
    assert b"evil" not in request.transport.sent


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
