"""Events out of a stream that comes in pieces."""

import pytest

from penstock.proxy.commands.top import event_buffer
from penstock.proxy.commands.top.event_buffer import EventBuffer, TooLong

pytestmark = pytest.mark.once


def test_an_event_may_come_in_pieces_of_any_size() -> None:
    sent = b'data: {"a":1}\n\ndata: {"b":2}\n\n'
    for size in range(1, len(sent) + 1):
        buffer = EventBuffer()
        pieces = [sent[at : at + size] for at in range(0, len(sent), size)]
        found = [event for piece in pieces if (event := buffer.add(piece)) is not None]
        assert found[-1] == b'{"b":2}'
        if size < 16:
            assert found[0] == b'{"a":1}'


def test_of_several_that_came_at_once_the_latest_is_news() -> None:
    buffer = EventBuffer()
    assert buffer.add(b"data: 1\n\ndata: 2\n\ndata: 3\n\ndata: 4") == b"3"
    assert buffer.add(b"5\n\n") == b"45"


def test_what_is_no_data_is_left_out() -> None:
    assert EventBuffer().add(b": ping\n\n") is None


def test_an_event_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_buffer, "EVENT_BYTES_MAX", 100)
    buffer = EventBuffer()
    buffer.add(b"x" * 100)
    with pytest.raises(TooLong):
        buffer.add(b"x")
