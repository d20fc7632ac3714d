"""Which fields are read: those of a beam search, and those that routes must not add."""

import msgspec
import pytest

from penstock.balancing.fields import BEAM_BYTES_MAX, BeamFields, Fields, searches_beams
from penstock.conf.routes import READ_MEMBERS


@pytest.mark.parametrize("value", [b"true", b"1", b'"true"'])  # as any backend may read it
def test_a_beam_search(value: bytes) -> None:
    assert searches_beams(b'{"model":"m","use_beam_search": %b}' % value)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"use_beam_search":false}',
        b'{"use_beam_search":null}',
        b'{"use_beam_search":true,"use_beam_search":false}',
        b'{"metadata":{"use_beam_search":true}}',
        b'{"messages":[{"use_beam_search":true}]}',
        b'{"messages":["use_beam_search"]}',
        b'{"use_beam_search":true',
        b'["use_beam_search",true]',
        b'{"use_beam_search":true,"x":' + b"[" * 100_000,
        b'{"use_beam_search":true,"x":"' + b"x" * BEAM_BYTES_MAX + b'"}',
    ],
)
def test_no_beam_search(body: bytes) -> None:
    assert not searches_beams(body)


def test_no_default_is_added_for_what_is_read() -> None:
    """A route's default comes after the body was read: nothing would count it."""
    fields = [*msgspec.structs.fields(Fields), *msgspec.structs.fields(BeamFields)]
    assert {field.encode_name for field in fields} == READ_MEMBERS
