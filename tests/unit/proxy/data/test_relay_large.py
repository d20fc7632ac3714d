"""Events too large to hold: they pass in pieces, and their beginning tells what they are."""

import pytest

from penstock.proxy.data.whole_events import EVENT_BYTES_MAX, HELD_BYTES_MAX
from penstock.proxy.dialects import CHAT, MESSAGES, RESPONSES, Dialect
from penstock.proxy.errors.backend import AnswerCut, EngineDead, InternalFault, StreamBroken
from tests.unit.proxy.data.relayed import DEAD, DONE, TOKENS, Request

TEXT = b"x" * (2 * EVENT_BYTES_MAX)
MADE = (
    b"event: response.output_text.delta\n"
    b'data: {"type":"response.output_text.delta","delta":"x"}\n\n'
)
# As vLLM writes it: the type comes last.
COMPLETED = (
    b'event: response.completed\ndata: {"response":{"id":"resp_1","object":"response","output":"%b"'
    b'},"type":"response.completed"}\n\n' % TEXT
)


def in_pieces(request: Request, event: bytes, size_bytes: int) -> Request:
    return request.feed(*[event[at : at + size_bytes] for at in range(0, len(event), size_bytes)])


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=["lf", "cr lf", "cr"])
@pytest.mark.parametrize("size_bytes", [65_536, 262_143, EVENT_BYTES_MAX + 1])
def test_a_large_end_of_a_responses_stream_is_its_end(line_end: bytes, size_bytes: int) -> None:
    last = COMPLETED.replace(b"\n", line_end)
    request = in_pieces(Request(RESPONSES).feed(MADE), last, size_bytes)
    assert request.relay.over
    request.relay.end()
    assert request.ends == [None]
    assert request.body == MADE + last


@pytest.mark.parametrize("begun", [MADE, b""], ids=["after tokens", "before"])
def test_a_large_event_is_read_in_turns(begun: bytes) -> None:
    """Decoding it takes milliseconds, and its last read may be a short one."""
    request = Request(RESPONSES).feed(begun)
    in_pieces(request, COMPLETED.replace(TEXT, TEXT[:60_000])[:-1], 20_000)
    assert not request.source.dear
    request.feed(b"\n")
    last = COMPLETED.replace(TEXT, TEXT[:80_000])
    request = in_pieces(Request(RESPONSES).feed(begun), last[:-1], 20_000)
    assert request.source.dear
    request.feed(b"\n")
    assert not request.source.dear


def test_the_usage_in_a_large_end_is_read_before_its_output_and_after_it() -> None:
    usage = b'"usage":{"input_tokens":3,"output_tokens":9}'
    for event in (
        COMPLETED.replace(b'"output":', usage + b',"output":'),
        COMPLETED.replace(b'},"type"', b",%b}," % usage + b'"usage":{"input_tokens":1},"type"'),
    ):
        request = in_pieces(Request(RESPONSES).feed(MADE), event, 65_536)
        request.relay.end()
        assert request.relay.usage is not None
        assert request.relay.usage.completion_tokens == 9


def test_a_large_end_in_one_read_with_what_stands_before_it() -> None:
    request = in_pieces(Request(RESPONSES), MADE + COMPLETED, len(MADE) + EVENT_BYTES_MAX // 2)
    request.relay.end()
    assert request.ends == [None]


def test_a_large_end_that_is_cut_is_no_end() -> None:
    request = in_pieces(Request(RESPONSES).feed(MADE), COMPLETED[:-9], 65_536)
    assert not request.relay.over
    request.relay.lost(AnswerCut())
    assert isinstance(request.ends[0], StreamBroken)
    alone = in_pieces(Request(RESPONSES).feed(MADE), COMPLETED[:-9], 65_536)
    alone.relay.end()
    assert isinstance(alone.ends[0], StreamBroken)


def test_a_large_event_is_no_end_by_what_it_quotes() -> None:
    quotes = MADE.replace(b'"delta":"x"', b'"delta":"event: response.completed %b"' % TEXT)
    request = in_pieces(Request(RESPONSES).feed(MADE), quotes, 65_536)
    request.relay.end()
    assert isinstance(request.ends[0], StreamBroken)


@pytest.mark.parametrize(
    ("dialect", "event"),
    [
        (RESPONSES, b'event: response.failed\ndata: {"response":"%b"}\n\n' % TEXT),
        (RESPONSES, b'data: {"type":"error","message":"%b"}\n\n' % TEXT),
        (MESSAGES, b'event: error\ndata: {"type":"error","error":"%b"}\n\n' % TEXT),
    ],
    ids=["responses", "unnamed", "messages"],
)
def test_a_large_error_is_an_error(dialect: Dialect, event: bytes) -> None:
    request = in_pieces(Request(dialect), event, 65_536)
    assert isinstance(request.ends[0], InternalFault)
    assert request.transport.sent == b""


@pytest.mark.parametrize("before", [b"", TOKENS[0]], ids=["first", "after a token"])
def test_a_large_error_whose_status_comes_last_is_passed_on_and_no_failure(before: bytes) -> None:
    """It may be a 4xx, which all other backends would give, too."""
    event = b'data: {"error": {"message": "%b", "code": 400}}\n\n' % TEXT
    request = in_pieces(Request(CHAT).feed(before), event, 65_536)
    assert request.relay.over
    request.relay.end()
    assert (request.ends, request.relay.served) == ([None], False)
    assert request.lease.generated_tokens == len(before[:1])
    assert request.body == before + event


def test_one_that_begins_with_what_a_dead_engine_says_is_its_failure() -> None:
    event = DEAD.replace(b"issue.", TEXT)
    assert isinstance(in_pieces(Request(CHAT), event, 65_536).ends[0], EngineDead)


def test_a_large_preamble_tells_whose_response_it_is_and_is_no_token() -> None:
    created = b'event: response.created\ndata: {"response":{"id":"resp_1","instructions":"%b"}}\n\n'
    created %= b"x" * (2 * HELD_BYTES_MAX)
    request = in_pieces(Request(RESPONSES), created, 65_536)
    assert request.made == ["resp_1"]
    assert request.relay.committed
    assert request.lease.first_token_s is None
    request.feed(MADE)
    assert not request.lease.prefilling
    assert request.body == created + MADE


def test_what_follows_a_large_event_is_read_as_ever() -> None:
    big = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % TEXT
    request = in_pieces(Request().feed(TOKENS[0]), big + TOKENS[1] + DONE, 65_536)
    request.relay.end()
    assert request.ends == [None]
    assert request.body == TOKENS[0] + big + TOKENS[1] + DONE
    assert request.lease.generated_tokens == 3
