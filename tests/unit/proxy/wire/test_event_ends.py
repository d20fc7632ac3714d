"""Where events end, with every line end that the standard allows and with several in one stream."""

from itertools import product

import pytest

from penstock.proxy.data.event_relay import EventRelay
from penstock.proxy.dialects.choices import Choices
from penstock.proxy.dialects.dialect import Event, Usage
from penstock.proxy.wire.event_ends import after_first, after_last, split
from tests.unit.proxy.data.relayed import DONE, ERROR, TOKENS, USAGE, Request

LINE_ENDS = {"lf": b"\n", "cr lf": b"\r\n", "cr": b"\r"}
STREAM = [TOKENS[0], TOKENS[1], USAGE, DONE]


@pytest.mark.parametrize(
    ("data", "events"),
    [
        (b"a\n\nb\n\n", [b"a\n\n", b"b\n\n"]),
        (b"a\r\n\r\nb\r\n\r\n", [b"a\r\n\r\n", b"b\r\n\r\n"]),
        (b"a\r\rb\r\r", [b"a\r\r", b"b\r\r"]),
        (b"a\r\n\r\nb\n\nc\r\rd", [b"a\r\n\r\n", b"b\n\n", b"c\r\r", b"d"]),
        (b"a\n\r\nb\r\n\nc\r\r\n", [b"a\n\r\n", b"b\r\n\n", b"c\r\r\n"]),
        (b"a\r\nb\r\n\r\n", [b"a\r\nb\r\n\r\n"]),
        (b"a\r\n\r", [b"a\r\n\r"]),  # the rest of the CR LF is to come
        (b"", []),
    ],
)
def test_events_end_at_empty_lines(data: bytes, events: list[bytes]) -> None:
    assert split(data) == events
    whole = [event for event in events if after_first(event) == len(event)]
    assert after_last(data) == len(b"".join(whole))
    assert after_first(data) == (len(events[0]) if whole else 0)


def test_a_cr_after_a_line_end_is_half_of_a_cr_lf_until_more_comes() -> None:
    assert (after_first(b"a\n\r"), after_last(b"a\n\r")) == (0, 0)
    assert (after_first(b"a\n\rb"), after_last(b"a\n\rb")) == (3, 3)
    assert split(b"a\n\rb") == [b"a\n\r", b"b"]


def ended_by(event: bytes, line_end: bytes) -> bytes:
    return event.replace(b"\n", line_end)


@pytest.mark.parametrize("ends", list(product(LINE_ENDS, repeat=4)), ids="-".join)
def test_a_stream_may_end_each_event_in_its_own_way(ends: tuple[str, ...]) -> None:
    """Ends that differ neither break a stream nor show what was hidden, wherever it is cut."""
    events = [ended_by(event, LINE_ENDS[end]) for event, end in zip(STREAM, ends, strict=True)]
    seen = b"".join([*events[:2], events[3]])
    stream = b"".join(events)
    for cut in range(0, len(stream) + 1, 1 if len(set(ends)) < 3 else 7):
        request = Request().feed(stream[:cut], stream[cut:])
        request.relay.end()
        assert request.ends == [None]
        # Of a CR LF that is cut the LF may go with what it stands before.
        assert request.body.replace(b"\r\n", b"\r") == seen.replace(b"\r\n", b"\r")
        assert request.relay.usage == Usage(7, 3, 4)
        assert request.lease.generated_tokens == 2


@pytest.mark.parametrize("first", list(LINE_ENDS.values()), ids=list(LINE_ENDS))
@pytest.mark.parametrize("then", list(LINE_ENDS.values()), ids=list(LINE_ENDS))
def test_an_error_is_seen_though_it_ends_in_another_way(first: bytes, then: bytes) -> None:
    """Also in one read with as many ordinary events as it would be missed by."""
    request = Request().feed(ended_by(TOKENS[0], first))
    request.feed(ended_by(ERROR, then) + ended_by(TOKENS[1], first), ended_by(DONE, first))
    assert request.ends[0] is not None
    assert request.ends[0].reason == "error_event"


@pytest.mark.once  # no class can inherit from a compiled dialect
def test_streams_of_one_line_end_are_recognised_and_not_parsed() -> None:
    class Watched(Choices):
        reads = 0

        def read(self, event: bytes) -> Event:
            self.reads += 1
            return super().read(event)

    for line_end in (b"\n", b"\r\n"):
        dialect = Watched("chat")
        request = Request(dialect).feed(*[ended_by(TOKENS[0], line_end)] * 2)
        before = dialect.reads
        request.feed(*[ended_by(TOKENS[0], line_end) * 2] * 3)
        assert dialect.reads == before
        assert isinstance(request.relay, EventRelay)
        assert request.lease.generated_tokens == 8
