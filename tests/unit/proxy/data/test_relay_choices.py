"""Chunks of several choices, and counts that no request has."""

import pytest

from penstock.balancing.ask import Ask
from penstock.proxy.dialects import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from penstock.proxy.dialects.dialect import Usage
from penstock.proxy.dialects.whole import whole_of
from penstock.proxy.errors.backend import StreamBroken
from tests.unit.proxy.data.relayed import DONE, ERROR, USAGE, Request, chat


def both(first: bytes = b"null", second: bytes = b"null") -> bytes:
    """One chunk with a choice each, as some servers pack them."""
    return (
        b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":%b},'
        b'{"index":1,"delta":{"content":"b"},"finish_reason":%b}]}\n\n' % (first, second)
    )


def of_two() -> Request:
    return Request(ask=Ask("/", prompt_tokens=7, choices=2, stream=True))


@pytest.mark.parametrize("packed_before", [True, False])
def test_a_chunk_of_two_choices_makes_up_for_nothing(packed_before: bool) -> None:
    """In one read with an event that is none: as many marks as events, and one of another kind."""
    begun = (both(),) if packed_before else (chat(b"a"), chat(b"b", index=1))
    request = of_two().feed(*begun, both() + USAGE)
    assert request.relay.usage == Usage(7, 3, 4)
    assert USAGE not in request.body
    broken = of_two().feed(*begun, both() + ERROR)
    assert isinstance(broken.ends[0], StreamBroken)
    assert broken.ends[0].reason == "error_event"
    aborted = of_two().feed(*begun, both() + chat(b"", b'"abort"'))
    assert isinstance(aborted.ends[0], StreamBroken)
    ended = of_two().feed(*begun, both() + DONE)
    ended.relay.end()
    assert ended.ends == [None]


def test_a_choice_that_was_given_up_is_seen_beside_one_that_was_not() -> None:
    for event in (both(b'"abort"', b"null"), both(b"null", b'"abort"')):
        request = of_two().feed(both(), event)
        assert isinstance(request.ends[0], StreamBroken)
        assert request.ends[0].reason == "abort"


def test_each_prompt_of_a_packed_chunk_has_begun() -> None:
    ask = Ask("/", prompt_tokens=90, prompts=2, stream=True)
    request = Request(COMPLETIONS, ask=ask).feed(both())
    assert request.backend.queued_prefill_tokens == 0


def test_streams_of_several_choices_are_recognised_and_not_parsed() -> None:
    request = of_two().feed(chat(b"a"), chat(b"b", index=1), chat(b"c") + chat(b"d", index=1))
    assert request.lease.generated_tokens == 4


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
    request = Request(hide_usage=False).feed(chat(b"a"), event, DONE)
    request.relay.end()
    assert (request.ends, request.relay.usage) == ([None], None)
    assert request.body == chat(b"a") + event + DONE


def test_counts_of_the_largest_request_are_read() -> None:
    whole = whole_of(b'{"usage":{"prompt_tokens":1073741824,"completion_tokens":0}}')
    assert whole is not None
    assert CHAT.usage(whole) == Usage(1_073_741_824, 0)


@pytest.mark.parametrize("code", [b"0", b"-1", b"200", b"99999999999999999999", b'"503"', b"true"])
def test_an_error_event_whose_code_is_no_status_is_the_servers_fault(code: bytes) -> None:
    error = b'data: {"error": {"message": "x", "code": %b}}\n\n' % code
    request = Request().feed(chat(b"a"), error, DONE)
    assert isinstance(request.ends[0], StreamBroken)
