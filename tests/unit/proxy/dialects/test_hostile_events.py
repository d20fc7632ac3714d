"""Whatever a backend's event holds, reading it builds little: nobody else waits for it."""

import tracemalloc

import pytest

from penstock.proxy.dialects import CHAT, COMPLETIONS, MESSAGES, POOLING, RESPONSES, TRANSCRIPTS
from penstock.proxy.dialects.dialect import Dialect

SIZE_BYTES = 200_000
# A million of these would be 90 ms of one turn. Copies of parts of the event are quick.
BUILT_MAX = 6


def filled(piece: bytes) -> bytes:
    return piece * (SIZE_BYTES // len(piece))


VALUES = {
    "keys": b"{" + b",".join(b'"%x":1' % number for number in range(SIZE_BYTES // 9)) + b"}",
    "equal keys": b"{" + filled(b'"a":1,')[:-1] + b"}",
    "numbers": b"[" + filled(b"1,")[:-1] + b"]",
    "objects": b"[" + filled(b"{},")[:-1] + b"]",
    "lists": b"[" + filled(b"[],")[:-1] + b"]",
    "depth": filled(b"["),
    "escapes": b'"' + filled(b"\\n") + b'"',
}
EVENTS = {
    "choices": b'data: {"choices":%b}\n\n',
    "delta": b'data: {"choices":[{"delta":%b}]}\n\n',
    "text": b'data: {"choices":[{"text":%b}]}\n\n',
    "finish_reason": b'data: {"choices":[{"finish_reason":%b}]}\n\n',
    "usage": b'data: {"choices":[],"usage":%b}\n\n',
    "error": b'data: {"error":%b}\n\n',
    "response": b'event: response.completed\ndata: {"type":"response.completed","response":%b}\n\n',
    "message": b'event: message_start\ndata: {"type":"message_start","message":%b}\n\n',
    "message delta": b'event: message_delta\ndata: {"type":"message_delta","delta":%b}\n\n',
    "anything": b"data: %b\n\n",
}


def built_bytes(dialect: Dialect, event: bytes) -> int:
    """The most memory that each way to read the event takes at once."""
    tracemalloc.start()
    for read in (dialect.read, dialect.says_nothing):
        read(event)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("event", EVENTS)
def test_reading_an_event_builds_little(event: str, value: str) -> None:
    for dialect in (CHAT, COMPLETIONS, RESPONSES, MESSAGES, TRANSCRIPTS, POOLING):
        data = EVENTS[event] % VALUES[value]
        assert built_bytes(dialect, data) < BUILT_MAX * len(data), dialect


@pytest.mark.parametrize("dialect", [CHAT, COMPLETIONS])
def test_many_choices_in_a_small_event_are_output(dialect: Dialect) -> None:
    """Hundreds of such events come in one read."""
    data = b'data: {"choices":[%b{}]}\n\n' % (b"{}," * 2_600)
    assert not dialect.says_nothing(data)
    assert built_bytes(dialect, data) < BUILT_MAX * len(data)
