"""What a whole JSON answer says is the same, however large it is."""

import pytest

from penstock.balancing.outline import finished
from penstock.proxy.dialects import CHAT, EMBED, MESSAGES, POOLING, RESPONSES, TRANSCRIPTS, Dialect
from penstock.proxy.dialects.dialect import SMALL_BYTES, Usage, reading_whole, whole_of
from penstock.proxy.dialects.members import Whole

EVERY = [CHAT, RESPONSES, MESSAGES, POOLING, TRANSCRIPTS, EMBED]
BODIES = [
    b'{"choices":[{"text":"a","finish_reason":"stop"}],"usage":{"prompt_tokens":3,'
    b'"completion_tokens":2}}',
    b'{"choices":[{"text":"a","finish_reason":"abort"}]}',
    b'{"choices":[{"message":{"role":"assistant","content":""}}]}',
    b'{"choices":[]}',
    b'{"error":{"message":"x"}}',
    b'{"object":"error","message":"x"}',
    b'{"object":"list","data":[{"embedding":[0.1,0.2]}]}',
    b'{"id":"resp_1","object":"response","status":"completed","output":[{"a":1}],'
    b'"usage":{"input_tokens":4,"output_tokens":0}}',
    b'{"id":"resp_1","object":"response","status":"queued","output":[]}',
    b'{"type":"message","content":[{"type":"text","text":"x"}],"stop_reason":null}',
    b'{"type":"message","content":[{"type":"text","text":""}],"stop_reason":"end_turn"}',
    b'{"meta":{"billed_units":{"input_tokens":9}}}',
    b'{"text":""}',
]


def said(dialect: Dialect, whole: Whole | None) -> list[object]:
    if whole is None:
        return []
    return [
        dialect.usage(whole),
        dialect.serves(whole),
        dialect.response_id(whole),
        dialect.aborted(whole),
    ]


@pytest.mark.parametrize("dialect", EVERY, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("first", [True, False])
def test_a_large_answer_says_what_a_small_one_says(
    dialect: Dialect, body: bytes, first: bool
) -> None:
    pad = b'"pad":[%b{}]' % (b"{}," * SMALL_BYTES)
    large = b"{%b,%b" % (pad, body[1:]) if first else b"%b,%b}" % (body[:-1], pad)
    assert said(dialect, finished(reading_whole(large))) == said(dialect, whole_of(body))


@pytest.mark.parametrize("body", [b"{}", b" [ ]\n", b"{ }", b"7", b'"x"', b"{", b'{"a":1', b""])
def test_what_says_nothing(body: bytes) -> None:
    assert whole_of(body) is None


def test_a_list_has_no_members_and_is_something() -> None:
    for body in (b"[1]", b" [" + b"0," * SMALL_BYTES + b"0]"):
        whole = finished(reading_whole(body))
        assert said(POOLING, whole) == [None, True, None, False]
        assert said(CHAT, whole) == [None, False, None, False]


def test_the_last_of_equal_members_counts() -> None:
    usage = b'{"usage":{},%b"usage":{"prompt_tokens":3}}' % (b'"usage":{},' * SMALL_BYTES)
    whole = finished(reading_whole(usage))
    assert whole is not None
    assert POOLING.usage(whole) == Usage(3, 0)
