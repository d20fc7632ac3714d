"""W3C trace context: what of a client's headers counts, and what a backend is told."""

import pytest

from penstock.proxy.tracing.trace import (
    COMMAS_MAX,
    MEMBERS_MAX,
    READ_BYTES_MAX,
    STATE_BYTES_MAX,
    context_headers,
    context_of,
    state_of,
    trace_id_of,
    without_context,
)

TRACE, SPAN = b"4bf92f3577b34da6a3ce929d0e0e4736", b"00f067aa0ba902b7"
VALID = b"00-%b-%b-01" % (TRACE, SPAN)


def headers(*values: bytes, states: tuple[bytes, ...] = ()) -> list[tuple[bytes, bytes]]:
    parents = [(b"traceparent", value) for value in values]
    return [(b"host", b"x"), *parents, *[(b"tracestate", each) for each in states], (b"a", b"b")]


@pytest.mark.parametrize(
    ("value", "sampled"),
    [
        (VALID, True),
        (VALID[:-2] + b"00", False),
        (VALID[:-2] + b"ff", True),  # flags that nobody knows mean nothing
        (VALID[:-2] + b"02", False),
        (b"01" + VALID[2:], True),  # a later version is read as far as it is known
        (b"cc" + VALID[2:-2] + b"00", False),
        (b"01" + VALID[2:] + b"-what-comes", True),
        (b"01" + VALID[2:] + b"-", True),
    ],
)
def test_a_valid_parent_counts(value: bytes, sampled: bool) -> None:
    context, given = context_of(headers(value))
    assert context is not None
    assert (context.trace_id, context.parent_id, context.sampled) == (TRACE, SPAN, sampled)
    assert given
    assert trace_id_of(headers(value)) == TRACE.decode()


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"00",
        VALID[:-1],
        VALID + b"0",
        VALID + b"-00",  # version 00 ends there
        b"01" + VALID[2:] + b".x",
        b"ff" + VALID[2:],
        b"0" + VALID,
        VALID.upper(),
        b"00-%b-%b-01" % (b"0" * 32, SPAN),
        b"00-%b-%b-01" % (TRACE, b"0" * 16),
        b"00-%b-%b-01" % (TRACE[:-1] + b"g", SPAN),
        b"00-%b-%b-0g" % (TRACE, SPAN),
        VALID.replace(b"-", b"_"),
        VALID[:3] + b"-" + VALID[4:35] + b"0" + VALID[36:],  # as many dashes, elsewhere
        b" " + VALID[1:],
        b"\xff" * 55,
        b"0" * 70_000,
    ],
)
def test_a_malformed_parent_counts_as_none(value: bytes) -> None:
    assert context_of(headers(value, states=(b"a=1",))) == (None, True)
    assert trace_id_of(headers(value)) == ""


def test_two_parents_count_as_none() -> None:
    for pair in ((VALID, VALID), (VALID, b"x")):
        assert context_of(headers(*pair)) == (None, True)
        assert trace_id_of(headers(*pair)) == ""


def test_without_any_such_header_nothing_is_given() -> None:
    assert context_of(headers()) == (None, False)
    assert trace_id_of(headers()) == ""


def test_a_state_without_a_parent_means_nothing() -> None:
    assert context_of(headers(states=(b"a=1",))) == (None, True)


def test_states_in_several_lines_are_one_list() -> None:
    context, _ = context_of(headers(VALID, states=(b"a=1,b=2", b"", b"c=3")))
    assert context is not None
    assert context.state == b"a=1,b=2,c=3"


def members(count: int) -> bytes:
    return b",".join(b"k%d=v" % number for number in range(count))


@pytest.mark.parametrize(
    ("value", "state"),
    [
        (b"", b""),
        (b" , ,", b""),
        (b"rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", b"rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"),
        (b"a=1 ,\tb=2", b"a=1,b=2"),
        (b"fw529a3039@dt=FfAg=", b""),  # no = in a value
        (b"fw529a3039@dt=FfAg", b"fw529a3039@dt=FfAg"),
        (b"1a-2f@foo=bar1", b"1a-2f@foo=bar1"),
        (b"a/*_-=x y", b"a/*_-=x y"),
        (b"A=1", b""),
        (b"a", b""),
        (b"a=", b""),
        (b"=1", b""),
        (b"a@b@c=1", b""),
        (b"a =1", b""),
        (b"%b=1" % (b"k" * 256), b"%b=1" % (b"k" * 256)),
        (b"%b=1" % (b"k" * 257), b""),
        (b"k=%b" % (b"v" * 256), b"k=%b" % (b"v" * 256)),
        (b"k=%b" % (b"v" * 257), b""),
        (b"a=\x7f", b""),
        (b"a=\xff", b""),
        (members(MEMBERS_MAX), members(MEMBERS_MAX)),
        (members(MEMBERS_MAX + 1), b""),
        (b"a=1" + b"," * COMMAS_MAX, b"a=1"),
        (b"a=1" + b"," * (COMMAS_MAX + 1), b""),
        (b"a=1" + b" " * READ_BYTES_MAX, b""),
    ],
)
def test_a_state_passes_whole_or_not_at_all(value: bytes, state: bytes) -> None:
    assert state_of(value) == state


def test_a_long_state_loses_long_members_first_then_its_last() -> None:
    short = [b"k%02d=%b" % (number, b"v" * 40) for number in range(11)]  # 44 bytes, and a comma
    long = b"long=%b" % (b"v" * 200)
    assert state_of(b",".join([long, *short])) == b",".join(short)
    many = [*short, b"last=%b" % (b"v" * 40)]
    assert len(b",".join(many)) > STATE_BYTES_MAX
    assert state_of(b",".join(many)) == b",".join(short)


def test_what_a_backend_is_told() -> None:
    told = context_headers(TRACE, b"1" * 16, True, b"a=1")
    assert told == [
        (b"traceparent", b"00-%b-1111111111111111-01" % TRACE),
        (b"tracestate", b"a=1"),
    ]
    assert context_headers(TRACE, b"1" * 16, False, b"") == [
        (b"traceparent", b"00-%b-1111111111111111-00" % TRACE)
    ]


def test_other_headers_stay_in_order() -> None:
    given = headers(VALID, VALID, states=(b"a=1",))
    assert without_context(given) == [(b"host", b"x"), (b"a", b"b")]
