"""Which events open a stream, and when a relay has them looked at."""

from math import inf

import pytest

from penstock.balancing.ask import Ask
from penstock.proxy.dialects import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Dialect
from tests.unit.proxy.data.relayed import ERROR, ROLE, USAGE, Request, chat

START = b'event: message_start\ndata: {"type":"message_start","message":{"content":[]}}\n\n'
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
CREATED = b'event: response.created\ndata: {"type":"response.created","response":{"id":"r"}}\n\n'
TEXT = b'data: {"choices":[{"index":0,"text":"","finish_reason":null}]}\n\n'
TWO = ROLE[:-4] + b"," + ROLE[ROLE.index(b'{"index"') :].replace(b'"index":0', b'"index":1')


@pytest.mark.parametrize(
    ("dialect", "events", "opens"),
    [
        (CHAT, ROLE, True),
        (CHAT, b": ping\n\n" + ROLE, True),
        (CHAT, TWO, True),
        (CHAT, b": ping\n\n", False),
        (CHAT, USAGE, False),
        (CHAT, ERROR, False),
        (CHAT, ROLE[:-1], False),
        (CHAT, ROLE + chat(b"a"), False),
        (MESSAGES, START, True),
        (MESSAGES, PING, False),
        (RESPONSES, CREATED, False),  # vLLM sends it before it has scheduled the request
        (COMPLETIONS, TEXT, False),  # it counts as the first token
    ],
)
def test_what_opens_a_stream(dialect: Dialect, events: bytes, opens: bool) -> None:
    request = Request(dialect)
    request.feed(events)
    assert bool(request.opened) == opens
    assert (request.relay.answering_s < inf) == opens
    if opens:
        assert not request.relay.committed
        assert request.body == b""


def test_a_stream_opens_once() -> None:
    request = Request()
    request.feed(ROLE, ROLE)
    assert len(request.opened) == 1
    request.lease.answering(1.0)
    request.relay.answering_s = inf
    request.feed(ROLE, chat(b"a"))
    assert len(request.opened) == 1
    assert request.body == ROLE * 3 + chat(b"a")


def test_without_a_prompt_in_a_queue_nothing_opens() -> None:
    request = Request(ask=Ask("/", prompt_tokens=7, stream=True, engine=False))
    request.feed(ROLE)
    assert not request.opened
